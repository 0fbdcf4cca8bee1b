"""Communication between the threads of a run: bounded streams, and all-reduce over the replicas of a role.

Every blocking wait goes through `RunControl.wait_until`. It ends at once when the run stops, and raises `Stuck` after
`stuck_after` seconds, naming the waiting thread and the event it waits for. A `Stopwatch` accumulates the time that a
thread spends blocked in one place.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax

Description = str | Callable[[], str]
"""Describes the event that a thread waits for. A function is called only when the description is needed."""


class Stopped(Exception):
    """The run is stopping, so the waiting thread must exit."""


class Stuck(Exception):
    """A thread waited longer than the limit."""


@dataclass
class Stopwatch:
    """Accumulates seconds between `start` and `stop`; other threads may read it while it runs."""

    owner: str
    """The replica that the time belongs to."""
    state: tuple[float, float | None] = (0.0, None)
    """Accumulated seconds, and the start time if it is running: one tuple, so that readers see a consistent pair."""

    def start(self) -> None:
        seconds, started = self.state
        if started is None:
            self.state = (seconds, time.perf_counter())

    def stop(self) -> None:
        seconds, started = self.state
        if started is not None:
            self.state = (seconds + time.perf_counter() - started, None)

    def read(self, now: float) -> float:
        """Returns the seconds accumulated up to `now`."""
        seconds, started = self.state
        return seconds if started is None else seconds + max(0.0, now - started)


@dataclass
class RunControl:
    """State shared by all threads of a run: the stop flag, the limit on waiting, and the current waits."""

    stuck_after: float = 600.0
    """Seconds after which a wait raises `Stuck`."""
    stopping: bool = False
    locks: dict[threading.Condition, Any] = field(default_factory=dict)
    """The lock of every condition."""
    waits: dict[str, Description] = field(default_factory=dict)
    """The event that each blocked replica waits for."""

    def condition(self, same_lock_as: threading.Condition | None = None) -> threading.Condition:
        """Creates a condition that `stop` notifies, optionally on the lock of another one."""
        lock = threading.RLock() if same_lock_as is None else self.locks[same_lock_as]
        condition = threading.Condition(lock)
        self.locks[condition] = lock
        return condition

    def stop(self) -> None:
        """Makes every current and future wait raise `Stopped`."""
        self.stopping = True
        for condition in self.locks:
            with condition:
                condition.notify_all()

    def wait_until(
        self, condition: threading.Condition, ready: Callable[[], Any], stopwatch: Stopwatch, event: Description
    ) -> None:
        """Blocks until `ready()` is true. The caller holds `condition`, and `event` describes the wait in errors."""
        if not ready():
            self.waits[stopwatch.owner] = event
            stopwatch.start()
            in_time = condition.wait_for(lambda: ready() or self.stopping, self.stuck_after)
            stopwatch.stop()
            if not in_time:
                raise Stuck(self.describe(stopwatch.owner, event))
            self.waits.pop(stopwatch.owner, None)
        if self.stopping:
            raise Stopped

    def describe(self, owner: str, event: Description) -> str:
        """Describes a wait that reached the limit, and the waits of all other replicas."""
        others = "; ".join(
            f"{name} waits for {_text(other)}" for name, other in sorted(self.waits.items()) if name != owner
        )
        return f"{owner} has waited {self.stuck_after:g} s for {_text(event)}" + (
            f" (meanwhile {others})" if others else ""
        )


def _text(event: Description) -> str:
    return event if isinstance(event, str) else event()


@dataclass
class Stream:
    """A bounded FIFO queue between two replicas. `put` blocks while it is full, `get` while it is empty."""

    control: RunControl
    source: str
    dest: str
    label: str
    capacity: int = 2
    dest_device: Any = None
    """The receiver's device, if its role names one. The sender copies the arrays there."""

    def __post_init__(self) -> None:
        self.items: deque[Any] = deque()
        self.condition = self.control.condition()
        self.send_wait, self.receive_wait = Stopwatch(self.source), Stopwatch(self.dest)
        self.sent = self.message_bytes = self.max_depth = 0
        self.put_event, self.get_event = (
            f"space to send {self.label} to {self.dest}",
            f"{self.label} from {self.source}",
        )

    @property
    def full(self) -> bool:
        return len(self.items) >= self.capacity

    def put(self, item: Any) -> None:
        with self.condition:
            self.control.wait_until(self.condition, lambda: not self.full, self.send_wait, self.put_event)
            self.items.append(item)
            if not self.sent:
                # All messages of a stream have the same shapes. `nbytes` does not wait for the array's value.
                self.message_bytes = sum(getattr(array, "nbytes", 0) for array in jax.tree.leaves(item))
            self.sent += 1
            self.max_depth = max(self.max_depth, len(self.items))
            self.condition.notify_all()

    def get(self) -> Any:
        with self.condition:
            self.control.wait_until(self.condition, self.items.__len__, self.receive_wait, self.get_event)
            self.condition.notify_all()
            return self.items.popleft()


@dataclass
class AllReduce:
    """Reduces one value from every replica of a role, and returns the result to all of them, round after round."""

    control: RunControl
    label: str
    replicas: tuple[str, ...]
    reduce: Callable[[list[Any]], Any]

    def __post_init__(self) -> None:
        self.values: dict[int, Any] = {}
        self.results: dict[int, Any] = {}
        self.condition = self.control.condition()
        self.stopwatches = [Stopwatch(replica) for replica in self.replicas]

    def contribute(self, index: int, value: Any) -> Any:
        """Adds the value of replica `index`, and returns the reduced value once all replicas have contributed."""
        with self.condition:
            # A replica contributes only after it got its result of the last round. When all have contributed, no
            # result of the last round is left.
            self.values[index] = value
            count = len(self.replicas)
            if len(self.values) == count:
                reduced = self.reduce([self.values[i] for i in range(count)])
                self.results = dict.fromkeys(range(count), reduced)
                self.values = {}
                self.condition.notify_all()
            event = f"the other replicas at {self.label}"
            self.control.wait_until(self.condition, lambda: index in self.results, self.stopwatches[index], event)
            return self.results.pop(index)
