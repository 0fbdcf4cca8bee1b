"""Importing an object that a user names as `module:attribute`.

>>> import_attribute("weft.errors:WeftError", "an error").__name__
'WeftError'
"""

import importlib
import os
import sys
from types import ModuleType
from typing import Any

from weft.errors import WeftError, unknown


def import_attribute(name: str, what: str) -> Any:
    """The object named `module:attribute`. Error messages call it `what`, as in "your own environment"."""
    module_name, colon, attribute = name.partition(":")
    if not colon or not attribute:
        raise WeftError(f"{name!r} names no attribute of a module: give {what} as module:attribute")
    known = vars(import_module(module_name, what))
    if attribute not in known:
        raise unknown(f"name in {module_name}", attribute, [other for other in known if not other.startswith("_")])
    return known[attribute]


def import_module(module_name: str, what: str) -> ModuleType:
    """A module by name, from the current folder or the installed packages. It is imported to find `what` in it."""
    if not all(part.isidentifier() for part in module_name.split(".")):
        raise WeftError(f"{module_name!r} is not a module's name: give {what} as module:attribute")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not module_name.startswith(error.name):
            raise
        raise WeftError(
            f"no module named {module_name!r} in the current folder or among the installed packages: check the spelling"
        ) from None
