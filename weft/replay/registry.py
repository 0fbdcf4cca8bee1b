"""Named kinds with options, written as text: `fifo`, `prioritised:0.6`, `samples_per_insert:4,1000,100`."""

from collections.abc import Callable, Mapping
from typing import TypeVar

from weft.errors import WeftError, unknown

T = TypeVar("T")


def from_text(text: str, kinds: Mapping[str, Callable[[str], T]], role: str) -> T:
    """Make the object that a text describes. `kinds` maps names to functions of the options after the colon.

    >>> from_text("half:3", {"half": lambda options: float(options) / 2}, "number")
    1.5
    """
    name, _, options = text.partition(":")
    if name not in kinds:
        raise unknown(f"{role}:", name, kinds)
    try:
        return kinds[name](options)
    except (TypeError, ValueError, OverflowError):
        raise WeftError(f"{role} is {text!r}: expected other numbers after {name!r}") from None
