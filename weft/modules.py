"""Modules that a user names: `module:attribute`."""

import importlib
import os
import sys
from types import ModuleType

from weft.errors import WeftError


def import_module(module_name: str, what: str) -> ModuleType:
    """A module by name, also one in the current folder, as `python -m` finds it; `what` is to be found in it."""
    if not all(part.isidentifier() for part in module_name.split(".")):
        raise WeftError(f"{module_name!r} is not a module's name: give {what} as module:attribute")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not module_name.startswith(error.name):
            raise
        raise WeftError(f"no module named {module_name!r} here or among the installed ones") from None
