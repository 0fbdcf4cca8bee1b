"""`python -m weft` is the `weft` command."""

from weft.cli import console

if __name__ == "__main__":
    console()
