"""How values cross inside a process: bounded streams, and meetings for merges.

Everything that waits does so through `Wait`, which knows when to give up: at once if the run is stopping, and with a
message that says who waits for what after `limit` seconds. A `Clock` keeps how long somebody has waited at one place.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax

Description = str | Callable[[], str]
"""What is waited for; a function says it as it is when it is asked."""


class Stopped(Exception):
    """The run is ending; whoever waits should leave."""


class Stuck(Exception):
    """Somebody waited longer than the limit."""


@dataclass
class Stopwatch:
    """How long somebody has spent at one place of the run, the stay that goes on included."""

    who: str
    spent: tuple[float, float | None] = (0.0, None)
    """Seconds of the stays that are over, and when the one that goes on began: one value, so that others may read."""

    def start(self) -> None:
        if self.spent[1] is None:
            self.spent = (self.spent[0], time.perf_counter())

    def stop(self) -> None:
        before, since = self.spent
        if since is not None:
            self.spent = (before + time.perf_counter() - since, None)

    def read(self, now: float) -> float:
        """Seconds up to a moment that is not in the past."""
        before, since = self.spent
        return before if since is None else before + max(0.0, now - since)


@dataclass
class RunControl:
    """What all parties of a run share: the wish to stop, and the limit on waiting."""

    limit: float = 600.0
    stopping: bool = False
    locks: dict[threading.Condition, Any] = field(default_factory=dict)
    """By everything that can be waited for."""
    doing: dict[str, Description] = field(default_factory=dict)

    def condition(self, beside: threading.Condition | None = None) -> threading.Condition:
        """Something to wait for; `beside` another, it has the same lock."""
        lock = threading.RLock() if beside is None else self.locks[beside]
        condition = threading.Condition(lock)
        self.locks[condition] = lock
        return condition

    def stop(self) -> None:
        self.stopping = True
        for condition in self.locks:
            with condition:
                condition.notify_all()

    def until(
        self, condition: threading.Condition, ready: Callable[[], Any], clock: Stopwatch, what: Description
    ) -> None:
        """Wait, with the condition held, until `ready`; the clock and `what` say who waits for what."""
        if not ready():
            self.doing[clock.who] = what
            clock.start()
            done = self.pause(condition, ready)
            clock.stop()
            if not done:
                raise Stuck(self.describe(clock.who, what))
            self.doing.pop(clock.who, None)
        if self.stopping:
            raise Stopped

    def pause(self, condition: threading.Condition, ready: Callable[[], Any]) -> bool:
        """Let others go on until `ready` or the end of the run; false if the limit came first."""
        return bool(condition.wait_for(lambda: ready() or self.stopping, self.limit))

    def describe(self, who: str, what: Description) -> str:
        """Who has waited for what, and what all the others wait for."""
        others = "; ".join(f"{name} waits for {_now(it)}" for name, it in sorted(self.doing.items()) if name != who)
        return f"{who} has waited {self.limit:g} s for {_now(what)}" + (f" (meanwhile {others})" if others else "")


def _now(what: Description) -> str:
    return what if isinstance(what, str) else what()


@dataclass
class Stream:
    """First in, first out, every value taken exactly once; a full stream makes its sender wait."""

    wait: RunControl
    source: str
    dest: str
    label: str
    capacity: int = 2
    place: Any = None
    """Where the receiver's arrays are, if that is one device that was named: the sender copies there."""

    def __post_init__(self) -> None:
        self.items: deque[Any] = deque()
        self.condition = self.wait.condition()
        self.blocked, self.starved = Stopwatch(self.source), Stopwatch(self.dest)
        self.sent = self.bytes = self.most = 0
        self.waits = f"{self.dest} to take {self.label}", f"{self.label} from {self.source}"

    @property
    def full(self) -> bool:
        return len(self.items) >= self.capacity

    def put(self, item: Any) -> None:
        with self.condition:
            self.wait.until(self.condition, lambda: not self.full, self.blocked, self.waits[0])
            self.items.append(item)
            if not self.sent:
                # Messages of a stream are alike. To ask an array for its size does not wait for what it holds.
                self.bytes = sum(getattr(array, "nbytes", 0) for array in jax.tree.leaves(item))
            self.sent += 1
            self.most = max(self.most, len(self.items))
            self.condition.notify_all()

    def get(self) -> Any:
        with self.condition:
            self.wait.until(self.condition, self.items.__len__, self.starved, self.waits[1])
            self.condition.notify_all()
            return self.items.popleft()


@dataclass
class AllReduce:
    """All replicas of a role bring their values, and each leaves with the merged ones."""

    wait: RunControl
    label: str
    names: tuple[str, ...]
    """Of the replicas."""
    merge: Callable[[list[Any]], Any]

    def __post_init__(self) -> None:
        self.brought: dict[int, Any] = {}
        self.results: dict[int, Any] = {}
        self.condition = self.wait.condition()
        self.clocks = [Stopwatch(name) for name in self.names]

    def join(self, index: int, value: Any) -> Any:
        with self.condition:
            # Whoever comes has left the last meeting, so when all have come its results are gone.
            self.brought[index] = value
            count = len(self.names)
            if len(self.brought) == count:
                merged = self.merge([self.brought[i] for i in range(count)])
                self.results = dict.fromkeys(range(count), merged)
                self.brought = {}
                self.condition.notify_all()
            what = f"the other replicas at {self.label}"
            self.wait.until(self.condition, lambda: index in self.results, self.clocks[index], what)
            return self.results.pop(index)
