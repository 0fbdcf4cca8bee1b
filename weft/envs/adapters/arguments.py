"""Keyword arguments of an environment as a value, so that what is made from them can be compared and hashed.

>>> Arguments.of({"size": 4, "map": ["SF", "FG"]}) == Arguments.of({"map": ["SF", "FG"], "size": 4})
True
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Arguments:
    """Names and values, sorted by name."""

    items: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> "Arguments":
        return cls(tuple(sorted(arguments.items())))

    def __hash__(self) -> int:
        # A value may be a list, which has no hash. Equal values have the same text.
        return hash(repr(self.items))
