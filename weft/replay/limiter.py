"""Rate limiters: they decide whether a table may be inserted into or sampled from, and explain why not.

A limiter is stateless; a table passes its own counts. The formulas are Reverb's. With `inserted` and `sampled` counted
since the last reset, and `size` items in the table,

- n items may be sampled if `size >= minimum` and `inserted * ratio - sampled - n >= least`;
- n items may be inserted if `size + n <= minimum` or `(inserted + n) * ratio - sampled <= most`.

Removing, deleting or overwriting items lowers `size` only; `inserted` and `sampled` still count them.

>>> limiter = SamplesPerInsert(ratio=4.0, minimum=100, error=40.0)
>>> limiter.may_insert(1, inserted=110, sampled=0, size=110)
False
>>> limiter.why_not_insert(1, inserted=110, sampled=0, size=110)
'110 inserted and 0 sampled; one more insert would be 44 samples ahead and the limiter allows 40'
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from weft.errors import WeftError
from weft.replay.registry import from_text


@dataclass(frozen=True)
class Limiter:
    """The general limiter; the functions below make the usual ones."""

    ratio: float
    """Samples per insert."""
    minimum: int
    """Items that the table must hold before sampling; inserts up to this number are always allowed."""
    least: float
    """The lowest value of `inserted * ratio - sampled` that a sample may lead to."""
    most: float
    """The highest value of `inserted * ratio - sampled` that an insert may lead to."""

    def __post_init__(self) -> None:
        if not (self.ratio > 0 and math.isfinite(self.ratio)) or self.minimum < 1:
            raise WeftError(f"a limiter has ratio > 0 and minimum >= 1; given {self.ratio} and {self.minimum}")
        if not self.most - self.least >= max(1.0, self.ratio):
            raise WeftError(
                f"the limiter keeps inserted * ratio - sampled between {self.least:g} and {self.most:g}: expected a "
                f"difference of at least {max(1.0, self.ratio):g}, because inserts and samples would block each other"
            )

    def may_insert(self, n: int, inserted: int, sampled: int, size: int) -> bool:
        return size + n <= self.minimum or (inserted + n) * self.ratio - sampled <= self.most

    def may_sample(self, n: int, inserted: int, sampled: int, size: int) -> bool:
        return size >= self.minimum and inserted * self.ratio - sampled - n >= self.least

    def why_not_insert(self, n: int, inserted: int, sampled: int, size: int) -> str:
        target = self.minimum * self.ratio
        ahead = (inserted + n) * self.ratio - sampled - target
        more = "one more insert" if n == 1 else f"{n} more"
        return (
            f"{inserted} inserted and {sampled} sampled; {more} would be {ahead:g} samples ahead and the limiter "
            f"allows {self.most - target:g}"
        )

    def why_not_sample(self, n: int, inserted: int, sampled: int, size: int) -> str:
        if size < self.minimum:
            return f"it holds {size} items and the limiter requires {self.minimum}"
        target = self.minimum * self.ratio
        behind = target - (inserted * self.ratio - sampled - n)
        return (
            f"{inserted} inserted and {sampled} sampled; {n} more would be {behind:g} samples too many and the limiter "
            f"allows {target - self.least:g}"
        )

    def never_insert(self, n: int, inserted: int, sampled: int, size: int) -> str:
        """Why n inserts at once can never be allowed, however many samples come first; empty if they can be."""
        room = self.most - min(self.least, inserted * self.ratio - sampled)
        if n <= self.minimum or n * self.ratio <= room:
            return ""
        return f"its limiter allows at most {max(self.minimum, math.floor(room / self.ratio))} inserts at once"

    def never_sample(self, n: int, inserted: int, sampled: int, size: int) -> str:
        """Why n samples at once can never be allowed, however many inserts come first; empty if they can be."""
        soonest = (inserted + max(0, self.minimum - size)) * self.ratio - sampled
        room = max(self.most, soonest) - self.least
        return "" if n <= room else f"its limiter allows at most {math.floor(room)} samples at once"


def MinimumSize(n: int) -> Limiter:
    """Allows samples when the table holds at least n items, and inserts always."""
    return Limiter(1.0, n, -math.inf, math.inf)


def SamplesPerInsert(ratio: float, minimum: int, error: float) -> Limiter:
    """Each item is sampled `ratio` times on average; inserts and samples may be ahead by `error` samples."""
    if not error >= max(1.0, ratio):
        raise WeftError(f"the limiter's error is {error:g}: expected at least max(1, ratio) = {max(1.0, ratio):g}")
    return Limiter(ratio, minimum, minimum * ratio - error, minimum * ratio + error)


def Queue(size: int) -> Limiter:
    """Blocks inserts while `size` items are unsampled; for a table with max_times_sampled=1 and sampler Fifo()."""
    return Limiter(1.0, 1, 0.0, float(size))


def Stack(size: int) -> Limiter:
    """As `Queue`, for a table with max_times_sampled=1 and sampler Lifo()."""
    return Queue(size)


LIMITERS: dict[str, Callable[..., Limiter]] = {
    "minimum": lambda n: MinimumSize(int(n)),
    "samples_per_insert": lambda ratio, minimum, error: SamplesPerInsert(ratio, int(minimum), error),
    "queue": lambda n: Queue(int(n)),
    "stack": lambda n: Stack(int(n)),
}
"""Functions of numbers that make limiters, by the names that declarations use."""


def parse_limiter(text: str, role: str = "limiter") -> Limiter:
    """A limiter from its name and numbers: `queue:5`. Errors call it `role`."""
    kinds = {name: partial(_from_numbers, make) for name, make in LIMITERS.items()}
    return from_text(text, kinds, role)


def _from_numbers(make: Callable[..., Limiter], options: str) -> Limiter:
    return make(*(float(number) for number in options.split(",") if number))
