"""How the environments of a host game are to be run: everything that changes speed and care, not what is played."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from weft.errors import WeftError

VECTOR = ("auto", "inprocess", "workers", "sync", "async", "native")
OTHERS = ("sync", "async", "native")
ON_ERROR = ("stop", "restart")
AUTORESET = ("next_step", "same_step", "disabled")


@dataclass(frozen=True)
class Options:
    """Settings of a pool.

    >>> Options.taken({"workers": 2, "gravity": 9.8})
    (Options(vector='auto', workers=2, timeout=60.0, on_error='stop', autoreset=None), {'gravity': 9.8})
    """

    vector: str = "auto"
    """Who runs the environments: `inprocess` or `workers`; `sync` or `async` are Gymnasium's own, `native` what an id
    brings along; `auto` is whichever of the first two is quicker."""
    workers: int | None = None
    """How many worker processes; None: one for each core."""
    timeout: float = 60.0
    """Seconds after which an environment of a worker counts as hanging."""
    on_error: str = "stop"
    """`restart`: an environment that fails is started again and its episode dropped."""
    autoreset: str | None = None
    """Gymnasium's mode for `sync`, `async` and `native`; None: `disabled` where there is a choice."""

    def __post_init__(self) -> None:
        for name, check, expected in _CHECKS:
            value = getattr(self, name)
            if not check(value):
                raise WeftError(f"{name} is {value!r}: it must be {expected}")
        others = self.vector in OTHERS
        if others and self.on_error == "restart":
            raise WeftError(f"vector={self.vector} cannot start single environments again: use vector=workers")
        if self.autoreset is not None and not others:
            raise WeftError(f"autoreset is for vector={one_of(OTHERS)}; vector={self.vector} restarts in the same step")
        if self.workers is not None and self.vector not in ("auto", "workers"):
            raise WeftError(f"workers is for vector=workers; vector={self.vector} has none")

    @classmethod
    def taken(cls, given: Mapping[str, Any]) -> tuple["Options", dict[str, Any]]:
        """The options among `given`, and all the rest."""
        mine = {name: value for name, value in given.items() if name in OPTIONS}
        return cls(**mine), {name: value for name, value in given.items() if name not in OPTIONS}


def one_of(choices: tuple[str, ...]) -> str:
    """Choices in words.

    >>> one_of(("stop", "restart"))
    'stop or restart'
    """
    return " or ".join(filter(None, (", ".join(choices[:-1]), choices[-1])))


def _positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


_CHECKS: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("vector", lambda value: value in VECTOR, one_of(VECTOR)),
    ("workers", lambda value: value is None or (_positive(value) and value == int(value)), "a whole number from 1"),
    ("timeout", _positive, "a number of seconds above 0"),
    ("on_error", lambda value: value in ON_ERROR, one_of(ON_ERROR)),
    ("autoreset", lambda value: value is None or value in AUTORESET, one_of(AUTORESET)),
)
OPTIONS = tuple(field.name for field in dataclasses.fields(Options))
