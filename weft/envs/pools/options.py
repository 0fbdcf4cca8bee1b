"""Options of pools: they change speed and error handling, never the environment."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from weft.errors import WeftError

POOL_KINDS = ("auto", "inprocess", "workers", "sync", "async", "native")
VECTOR_ENV_KINDS = ("sync", "async", "native")
ON_ERROR = ("stop", "restart")
AUTORESET = ("next_step", "same_step", "disabled")


@dataclass(frozen=True)
class PoolOptions:
    """Settings of a pool.

    >>> PoolOptions.split({"workers": 2, "gravity": 9.8})
    (PoolOptions(vector='auto', workers=2, timeout=60.0, on_error='stop', autoreset=None), {'gravity': 9.8})
    """

    vector: str = "auto"
    """Kind of pool: `inprocess`, `workers`, or one of Gymnasium's vector environments: `sync`, `async` or `native` (the
    one registered with the environment's id). `auto` selects the faster of `inprocess` and `workers`."""
    workers: int | None = None
    """Number of worker processes. None: one per core."""
    timeout: float = 60.0
    """Seconds without a response after which an environment counts as hung."""
    on_error: str = "stop"
    """`restart`: an environment that fails is restarted and its episode dropped."""
    autoreset: str | None = None
    """Gymnasium's autoreset mode for `sync`, `async` and `native`. None: `disabled`, or the only mode of `native`."""

    def __post_init__(self) -> None:
        for name, is_valid, expected in _CHECKS:
            value = getattr(self, name)
            if not is_valid(value):
                raise WeftError(f"{name} is {value!r}: it must be {expected}")
        is_vector_env = self.vector in VECTOR_ENV_KINDS
        if is_vector_env and self.on_error == "restart":
            raise WeftError(f"vector={self.vector} cannot restart single environments: use vector=workers")
        if self.autoreset is not None and not is_vector_env:
            raise WeftError(
                f"autoreset is for vector={one_of(VECTOR_ENV_KINDS)}; vector={self.vector} restarts in the same step"
            )
        if self.workers is not None and self.vector not in ("auto", "workers"):
            raise WeftError(f"workers is for vector=workers; vector={self.vector} has none")

    @classmethod
    def split(cls, options: Mapping[str, Any]) -> tuple["PoolOptions", dict[str, Any]]:
        """Separates the options of the pool from the arguments of the environment."""
        pool_options = {name: value for name, value in options.items() if name in OPTIONS}
        return cls(**pool_options), {name: value for name, value in options.items() if name not in OPTIONS}


def one_of(choices: tuple[str, ...]) -> str:
    """Returns choices as English text.

    >>> one_of(("stop", "restart"))
    'stop or restart'
    """
    return " or ".join(filter(None, (", ".join(choices[:-1]), choices[-1])))


def _positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


_CHECKS: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("vector", lambda value: value in POOL_KINDS, one_of(POOL_KINDS)),
    ("workers", lambda value: value is None or (_positive(value) and value == int(value)), "a whole number from 1"),
    ("timeout", _positive, "a number of seconds above 0"),
    ("on_error", lambda value: value in ON_ERROR, one_of(ON_ERROR)),
    ("autoreset", lambda value: value is None or value in AUTORESET, one_of(AUTORESET)),
)
OPTIONS = tuple(field.name for field in dataclasses.fields(PoolOptions))
