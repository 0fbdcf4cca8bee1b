"""How values cross inside a process: bounded streams, and meetings for merges.

Everything that waits does so through `Wait`, which knows when to give up: at once if the run is stopping, and with a
message that says who waits for what after `limit` seconds.
"""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


class Stopped(Exception):
    """The run is ending; whoever waits should leave."""


class Stuck(Exception):
    """Somebody waited longer than the limit."""


@dataclass
class Wait:
    """What all parties of a run share: the wish to stop, and the limit on waiting."""

    limit: float = 600.0
    stopping: bool = False
    conditions: list[threading.Condition] = field(default_factory=list)
    doing: dict[str, str] = field(default_factory=dict)

    def condition(self) -> threading.Condition:
        condition = threading.Condition()
        self.conditions.append(condition)
        return condition

    def stop(self) -> None:
        self.stopping = True
        for condition in self.conditions:
            with condition:
                condition.notify_all()

    def until(self, condition: threading.Condition, ready: Callable[[], bool], who: str, what: str) -> None:
        """Wait, with the condition held, until `ready`; `who` and `what` are for the error."""
        if not ready():
            self.doing[who] = f"waits for {what}"
            done = condition.wait_for(lambda: ready() or self.stopping, self.limit)
            if not done:
                raise Stuck(self.describe(who, what))
            self.doing.pop(who, None)
        if self.stopping:
            raise Stopped

    def describe(self, who: str, what: str) -> str:
        others = "; ".join(f"{name} {doing}" for name, doing in sorted(self.doing.items()) if name != who)
        return f"{who} has waited {self.limit:g} s for {what}" + (f" (meanwhile {others})" if others else "")


@dataclass
class Stream:
    """First in, first out, every value taken exactly once; a full stream makes its sender wait."""

    wait: Wait
    source: str
    dest: str
    label: str
    capacity: int = 2

    def __post_init__(self) -> None:
        self.items: deque[Any] = deque()
        self.condition = self.wait.condition()

    def put(self, item: Any) -> None:
        with self.condition:
            what = f"{self.dest} to take {self.label}"
            self.wait.until(self.condition, lambda: len(self.items) < self.capacity, self.source, what)
            self.items.append(item)
            self.condition.notify_all()

    def get(self) -> Any:
        with self.condition:
            self.wait.until(self.condition, lambda: bool(self.items), self.dest, f"{self.label} from {self.source}")
            self.condition.notify_all()
            return self.items.popleft()


@dataclass
class Meeting:
    """All replicas of a role bring their values, and each leaves with the merged ones."""

    wait: Wait
    label: str
    count: int
    merge: Callable[[list[Any]], Any]

    def __post_init__(self) -> None:
        self.brought: dict[int, Any] = {}
        self.results: dict[int, Any] = {}
        self.condition = self.wait.condition()

    def join(self, index: int, who: str, value: Any) -> Any:
        with self.condition:
            # Whoever comes has left the last meeting, so when all have come its results are gone.
            self.brought[index] = value
            if len(self.brought) == self.count:
                merged = self.merge([self.brought[i] for i in range(self.count)])
                self.results = dict.fromkeys(range(self.count), merged)
                self.brought = {}
                self.condition.notify_all()
            self.wait.until(self.condition, lambda: index in self.results, who, f"the other replicas at {self.label}")
            return self.results.pop(index)
