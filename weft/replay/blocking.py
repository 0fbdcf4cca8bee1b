"""Where calls wait until a table's limiter lets them through, and say why it does not.

>>> from weft.replay.limiter import MinimumSize
>>> items = ItemArrays(capacity=10)
>>> lock = threading.RLock()
>>> gate = BlockingLimiter("a", lock, items, MinimumSize(3))
>>> with lock:
...     gate.wait_to_sample(2, timeout=0.0)
Traceback (most recent call last):
...
weft.replay.blocking.LimiterTimeout: table 'a': sample of 2 waited 0.0 s: 0 items are in it and the limiter asks for 3
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from weft.errors import WeftError
from weft.replay.items import ItemArrays
from weft.replay.limiter import Limiter

Says = Callable[[], str]
"""A reason in words; empty if there is none."""


@dataclass
class Counts:
    """What has happened to a table since its last reset."""

    inserted: int = 0
    sampled: int = 0
    removed: int = 0
    """By the remover, to make room."""
    deleted: int = 0
    """By key."""
    lost: int = 0
    """Because the store wrote over their steps."""
    max_priority: float = 1.0

    def raise_priority(self, priorities: np.ndarray) -> None:
        self.max_priority = float(priorities.max(initial=self.max_priority))


class LimiterTimeout(WeftError):
    """The limiter did not allow a call within the call's timeout."""

    def __init__(self, call: str, reason: str, seconds: float | str | None) -> None:
        super().__init__(f"{call} waited {seconds} s: {reason}")
        self.call, self.reason = call, reason


class BlockingLimiter:
    """The limiter of one table at work; `lock` is held while one waits or counts."""

    def __init__(
        self, name: str, lock: threading.RLock, items: ItemArrays, limiter: Limiter, max_times_sampled: int = 0
    ) -> None:
        self.name, self.items, self.max_times_sampled = name, items, max_times_sampled
        self.counts = Counts()
        self.closed = False
        self._lock = lock
        self._inserters, self._samplers = threading.Condition(lock), threading.Condition(lock)
        self.change(limiter)

    def change(self, limiter: Limiter) -> None:
        """From now on another limiter; whoever waits is judged by it."""
        if limiter.minimum > self.items.capacity:
            raise WeftError(
                f"table {self.name!r}: its limiter asks for {limiter.minimum} items and it holds at most "
                f"{self.items.capacity}"
            )
        self.limiter = limiter
        self.wake()

    def wake(self) -> None:
        """Something has changed for everybody."""
        with self._lock:
            self._inserters.notify_all()
            self._samplers.notify_all()

    def count_inserted(self, n: int) -> None:
        self.counts.inserted += n
        self._samplers.notify_all()

    def count_sampled(self, n: int) -> None:
        self.counts.sampled += n
        self._inserters.notify_all()

    def wait_to_insert(self, n: int, timeout: float | None) -> None:
        if self.closed or self._never_insert(n) or self._no_insert(n):
            says = partial(self._no_insert, n), partial(self._never_insert, n)
            self._wait(self._inserters, *says, timeout, f"insert of {n}")

    def wait_to_sample(self, n: int, timeout: float | None) -> None:
        if self.closed or self._never_sample(n) or self._no_sample(n):
            says = partial(self._no_sample, n), partial(self._never_sample, n)
            self._wait(self._samplers, *says, timeout, f"sample of {n}")

    def _wait(self, condition: threading.Condition, no: Says, never: Says, timeout: float | None, what: str) -> None:
        if not condition.wait_for(lambda: self.closed or never() or not no(), timeout):
            raise LimiterTimeout(f"table {self.name!r}: {what}", no(), timeout)
        if self.closed:
            raise WeftError(f"table {self.name!r} is closed: {what} is not possible any more")
        if reason := never():
            raise WeftError(f"table {self.name!r}: {what} can never be: {reason}")

    def _no_insert(self, n: int) -> str:
        counts = self._asked(n)
        return "" if not n or self.limiter.may_insert(*counts) else self.limiter.why_not_insert(*counts)

    def _no_sample(self, n: int) -> str:
        counts = self._asked(n)
        if not self.limiter.may_sample(*counts):
            return self.limiter.why_not_sample(*counts)
        left = self.items.size * self.max_times_sampled - self.items.draws
        if self.max_times_sampled and left < n:
            return f"its {self.items.size} items may be sampled {left} times more (max_times_sampled)"
        return ""

    def _asked(self, n: int) -> tuple[int, int, int, int]:
        return n, self.counts.inserted, self.counts.sampled, self.items.size

    def _never_insert(self, n: int) -> str:
        if n > self.items.capacity:
            return f"it holds at most {self.items.capacity} items, so insert less at once"
        return self.limiter.never_insert(*self._asked(n))

    def _never_sample(self, n: int) -> str:
        if n < 1:
            return "expected at least one item"
        if self.max_times_sampled and n > self.items.capacity * self.max_times_sampled:
            return f"it holds at most {self.items.capacity} items, each for {self.max_times_sampled} samples"
        return self.limiter.never_sample(*self._asked(n))
