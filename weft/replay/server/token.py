"""The token that a server asks of its clients, and where it is kept: a file that only its owner can read."""

import os
import secrets
import stat
from pathlib import Path

from weft.errors import WeftError

VARIABLE = "WEFT_REPLAY_TOKEN"
"""The environment variable that a token is taken from, where none is given."""


def find_token(token: str | None = None, file: str | Path | None = None) -> str:
    """The token given, or of a file, or of the environment."""
    found = token or (read_token(file) if file else None) or os.environ.get(VARIABLE)
    if not found:
        raise WeftError(f"no token is given for the replay server: pass token= or token_file=, or set {VARIABLE}")
    return found


def read_token(file: str | Path) -> str:
    """The token in a file, refused where others could have read it."""
    try:
        mode = os.stat(file).st_mode
        token = Path(file).read_text().strip()
    except (OSError, ValueError) as error:
        raise WeftError(f"the token file {file} cannot be read: {error}") from error
    if stat.S_IMODE(mode) & 0o077:
        raise WeftError(f"the token file {file} can be read by others than its owner: `chmod 600 {file}`")
    if not token:
        raise WeftError(f"the token file {file} is empty")
    return token


def write_token(file: str | Path) -> str:
    """A new token in a new file; the one that is there, if there is."""
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return read_token(file)
    except OSError as error:
        raise WeftError(f"the token file {file} cannot be written: {error.strerror}") from error
    token = secrets.token_urlsafe(24)
    with open(descriptor, "w") as opened:
        opened.write(token + "\n")
    return token
