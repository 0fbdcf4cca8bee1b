"""Runs the `weft` command as `python -m weft`."""

from weft.cli import console

if __name__ == "__main__":
    console()
