"""Blocks a table's calls until its limiter allows them.

>>> from weft.replay.limiter import MinimumSize
>>> items = ItemArrays(capacity=10)
>>> lock = threading.RLock()
>>> limiter = BlockingLimiter("a", lock, items, MinimumSize(3))
>>> with lock:
...     limiter.wait_to_sample(2, timeout=0.0)
Traceback (most recent call last):
...
weft.replay.blocking.LimiterTimeout: table 'a': sample of 2 waited 0.0 s: it holds 0 items and the limiter requires 3
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from weft.errors import WeftError
from weft.replay.items import ItemArrays
from weft.replay.limiter import Limiter

Reason = Callable[[], str]
"""Returns why a call is not allowed; an empty string if it is."""


@dataclass
class Counts:
    """Counts of a table's events since its last reset."""

    inserted: int = 0
    sampled: int = 0
    removed: int = 0
    """Items that the remover removed from a full table."""
    deleted: int = 0
    """Items deleted by key."""
    lost: int = 0
    """Items removed because the store overwrote their first step."""
    max_priority: float = 1.0

    def raise_priority(self, priorities: np.ndarray) -> None:
        self.max_priority = float(priorities.max(initial=self.max_priority))


class LimiterTimeout(WeftError):
    """The limiter did not allow a call within the call's timeout."""

    def __init__(self, call: str, reason: str, seconds: float | str | None) -> None:
        super().__init__(f"{call} waited {seconds} s: {reason}")
        self.call, self.reason = call, reason


class BlockingLimiter:
    """The limiter of one table, its counts, and the calls that wait for it. Hold `lock` to wait or to count."""

    def __init__(
        self, table: str, lock: threading.RLock, items: ItemArrays, limiter: Limiter, max_times_sampled: int = 0
    ) -> None:
        self.table, self.items, self.max_times_sampled = table, items, max_times_sampled
        self.counts = Counts()
        self.closed = False
        self._lock = lock
        self._inserts, self._samples = threading.Condition(lock), threading.Condition(lock)
        self.replace(limiter)

    def replace(self, limiter: Limiter) -> None:
        """Use another limiter from now on, also for calls that wait."""
        if limiter.minimum > self.items.capacity:
            raise WeftError(
                f"table {self.table!r}: its limiter requires {limiter.minimum} items and it holds at most "
                f"{self.items.capacity}"
            )
        self.limiter = limiter
        self.wake()

    def wake(self) -> None:
        """Let all waiting calls check again whether they are allowed."""
        with self._lock:
            self._inserts.notify_all()
            self._samples.notify_all()

    def count_inserted(self, n: int) -> None:
        self.counts.inserted += n
        self._samples.notify_all()

    def count_sampled(self, n: int) -> None:
        self.counts.sampled += n
        self._inserts.notify_all()

    def wait_to_insert(self, n: int, timeout: float | None) -> None:
        if self.closed or self._never_insert(n) or self._not_insert(n):
            reasons = partial(self._not_insert, n), partial(self._never_insert, n)
            self._wait(self._inserts, *reasons, timeout, f"insert of {n}")

    def wait_to_sample(self, n: int, timeout: float | None) -> None:
        if self.closed or self._never_sample(n) or self._not_sample(n):
            reasons = partial(self._not_sample, n), partial(self._never_sample, n)
            self._wait(self._samples, *reasons, timeout, f"sample of {n}")

    def _wait(
        self, condition: threading.Condition, not_yet: Reason, never: Reason, timeout: float | None, call: str
    ) -> None:
        if not condition.wait_for(lambda: self.closed or never() or not not_yet(), timeout):
            raise LimiterTimeout(f"table {self.table!r}: {call}", not_yet(), timeout)
        if self.closed:
            raise WeftError(f"table {self.table!r} is closed: {call} is not possible")
        if reason := never():
            raise WeftError(f"table {self.table!r}: {call} is never possible: {reason}")

    def _not_insert(self, n: int) -> str:
        counts = self._counts(n)
        return "" if not n or self.limiter.may_insert(*counts) else self.limiter.why_not_insert(*counts)

    def _not_sample(self, n: int) -> str:
        counts = self._counts(n)
        if not self.limiter.may_sample(*counts):
            return self.limiter.why_not_sample(*counts)
        remaining = self.items.size * self.max_times_sampled - self.items.draws
        if self.max_times_sampled and remaining < n:
            return f"its {self.items.size} items allow {remaining} more samples (max_times_sampled)"
        return ""

    def _counts(self, n: int) -> tuple[int, int, int, int]:
        """The arguments of a limiter's methods."""
        return n, self.counts.inserted, self.counts.sampled, self.items.size

    def _never_insert(self, n: int) -> str:
        if n > self.items.capacity:
            return f"it holds at most {self.items.capacity} items, so insert fewer at once"
        return self.limiter.never_insert(*self._counts(n))

    def _never_sample(self, n: int) -> str:
        if n < 1:
            return "expected at least one item"
        if self.max_times_sampled and n > self.items.capacity * self.max_times_sampled:
            return f"it holds at most {self.items.capacity} items, each for {self.max_times_sampled} samples"
        return self.limiter.never_sample(*self._counts(n))
