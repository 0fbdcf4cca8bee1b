"""The token by which a server authenticates clients, and the file that stores it, readable only by its owner."""

import os
import secrets
import stat
from pathlib import Path

from weft.errors import WeftError

VARIABLE = "WEFT_REPLAY_TOKEN"
"""The environment variable with the default token."""


def find_token(token: str | None = None, file: str | Path | None = None) -> str:
    """Returns the given token, or the one in the file, or the one in the environment."""
    found = token or (read_token(file) if file else None) or os.environ.get(VARIABLE)
    if not found:
        raise WeftError(f"no token is given for the replay server: pass token= or token_file=, or set {VARIABLE}")
    return found


def read_token(file: str | Path) -> str:
    """Returns the token in a file; raises if other users can read the file."""
    try:
        mode = os.stat(file).st_mode
        token = Path(file).read_text().strip()
    except (OSError, ValueError) as error:
        raise WeftError(f"the token file {file} cannot be read: {error}") from error
    if stat.S_IMODE(mode) & 0o077:
        raise WeftError(f"other users can read or write the token file {file}: run `chmod 600 {file}`")
    if not token:
        raise WeftError(f"the token file {file} is empty")
    return token


def write_token(file: str | Path) -> str:
    """Writes a random token to a new file and returns it; if the file exists, returns the token in it."""
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
