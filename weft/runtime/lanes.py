"""Lanes and registers: who works from which version, and whose work is taken next.

A lane is a part of the environments that goes at its own pace. One replica of the role that takes (a learner) serves a
number of lanes: an iteration of it takes the work of `take` lanes that are ready, and ends by publishing the next
version of what they read. A lane goes through three moments in every iteration of its own:

- it *begins*, and reads the newest version;
- it *arrives*, when its work is done or it must wait for whoever takes: for an answer, or for room to send;
- it is *taken*, and only then may it begin again. So a lane never has more than one piece of work that waits, and the
  memory for what is under way is bounded by the number of lanes.

The lag of a piece of work is the number of versions published between those it was begun from and taken into. With a
bound on it, two rules keep it, and neither can lock up the run:

- nothing is begun that could not be taken in time: if all work that is under way were taken first, oldest first;
- nothing is taken that would make something else too late: then the slow lane is waited for.

Whenever the taker waits, every version is published, so lanes are allowed to begin until `take` of them are under way;
each of those arrives without waiting for anybody but the taker.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from weft.runtime.channel import RunControl, Stopwatch


@dataclass
class PublishedValue:
    """A version of what a register holds, and its copies on other devices."""

    value: Any = None
    copies: dict[Any, Any] = field(default_factory=dict)

    def at(self, place: Any, copy: Callable[[Any], Any]) -> Any:
        """The value at a place, brought there by `copy`: once."""
        if place not in self.copies:
            self.copies[place] = copy(self.value)
        return self.copies[place]


@dataclass
class Register:
    """The newest version of what a free role makes: whoever reads it never waits."""

    wait: RunControl
    newest: PublishedValue = field(default_factory=PublishedValue)

    def __post_init__(self) -> None:
        self.condition = self.wait.condition()

    def read(self, place: Any = None, copy: Callable[[Any], Any] = lambda value: value) -> Any:
        with self.condition:
            return self.newest.at(place, copy)

    def publish(self, value: Any) -> None:
        with self.condition:
            self.newest = PublishedValue(value)


@dataclass(eq=False)
class Lane:
    """How far one lane is."""

    name: str
    begun: int = 0
    """Iterations, from 1."""
    arrived: int = 0
    taken: int = 0
    read: int = 0
    """The last iteration that somebody read for."""
    version: int = 0
    """The one that the current iteration was begun from: what was read first, or could have been."""
    order: int = 0
    """Its place among all arrivals."""

    @property
    def under_way(self) -> bool:
        return self.begun > self.taken

    @property
    def ready(self) -> bool:
        return self.under_way and self.arrived == self.begun


@dataclass
class Admission:
    """The lanes of one replica of a role that takes, and the register that they read."""

    wait: RunControl
    taker: str
    names: tuple[str, ...]
    take: int
    work: int
    """Iterations that the lanes do in all: whoever is ready does the next."""
    max_lag: int | None = None
    newest: PublishedValue = field(default_factory=PublishedValue)
    """What was published last."""
    lags: Counter[int] = field(default_factory=Counter)
    """How often work of each lag was taken."""

    def __post_init__(self) -> None:
        self.lanes = [Lane(name) for name in self.names]
        # Two things to wait for, so that nobody is woken for nothing: what a lane may do, and what can be taken.
        self.condition = self.wait.condition()
        self.taking = self.wait.condition(beside=self.condition)
        self.begun = self.taken = self.version = self.arrivals = 0
        self.hungry = Stopwatch(self.taker)
        self.latest: list[int] = []
        self.most = 0

    def begin(self, index: int, number: int, clock: Stopwatch) -> bool:
        """Begin iteration `number` of a lane, which several roles may have a part in; false if no work is left."""
        lane = self.lanes[index]
        with self.condition:
            if lane.begun < number:
                what = f"{self.taker} to take what it has, or to be less behind"
                self.wait.until(
                    self.condition, lambda: lane.begun >= number or self.finished or self.may_begin(lane), clock, what
                )
            if lane.begun < number and not self.finished:
                lane.begun += 1
                self.begun += 1
                lane.version = self.version
                self.condition.notify_all()
            return lane.begun >= number

    def read(self, index: int, place: Any = None, copy: Callable[[Any], Any] = lambda value: value) -> Any:
        """The newest value, brought to a place by `copy`: once for each version and place."""
        with self.condition:
            lane = self.lanes[index]
            if lane.read < lane.begun:
                # What others of its strands read later is no older, and the oldest is what counts.
                lane.read, lane.version = lane.begun, self.version
                self.taking.notify_all()
            return self.newest.at(place, copy)

    def arrive(self, index: int, number: int) -> None:
        """A lane can do nothing more for now without whoever takes, in its iteration `number`."""
        lane = self.lanes[index]
        if lane.arrived < number:
            with self.condition:
                if lane.arrived < number:
                    lane.arrived = number
                    self.arrivals += 1
                    lane.order = self.arrivals
                    self.most = max(self.most, self.ready)
                    self.taking.notify_all()

    def form(self) -> list[int]:
        """Wait until enough lanes are ready; take their work, in the order of their numbers."""
        with self.condition:
            chosen: list[Lane] = []

            def found() -> list[Lane]:
                nonlocal chosen
                chosen = self.choice()
                return chosen

            self.wait.until(self.taking, found, self.hungry, self.missing)
            self.latest = [self.taken - lane.version for lane in chosen]
            self.lags.update(self.latest)
            for lane in chosen:
                lane.taken = lane.begun
            self.taken += 1
            self.condition.notify_all()
            return [index for index, lane in enumerate(self.lanes) if lane in chosen]

    def publish(self, value: Any) -> None:
        """The next version of what the lanes read."""
        with self.condition:
            self.newest = PublishedValue(value)
            self.version += 1
            self.condition.notify_all()

    @property
    def ready(self) -> int:
        """How many lanes have work that waits to be taken."""
        return sum(lane.ready for lane in self.lanes)

    @property
    def finished(self) -> bool:
        return self.begun == self.work

    def may_begin(self, lane: Lane) -> bool:
        # Every lane is left one piece of work, so that its state at the end is one that it made.
        waiting = sum(other.begun == 0 for other in self.lanes if other is not lane)
        if lane.under_way or self.work - self.begun <= waiting and lane.begun:
            return False
        if self.max_lag is None:
            return True
        ahead = sum(other.under_way for other in self.lanes)
        return self.taken + ahead // self.take <= self.version + self.max_lag

    def choice(self) -> list[Lane]:
        """The lanes to take now: the oldest work that is ready, if all else can still be taken in time; else none."""
        ready = [lane for lane in self.lanes if lane.ready]
        if len(ready) < self.take:
            return []
        chosen = sorted(ready, key=lambda lane: (lane.version, lane.order))[: self.take]
        return chosen if self.max_lag is None or self.leaves_time(chosen, self.max_lag) else []

    def leaves_time(self, chosen: list[Lane], max_lag: int) -> bool:
        """Whether all other work that is under way can still be taken in time."""
        later = sorted(lane.version for lane in self.lanes if lane.under_way and lane not in chosen)
        return all(self.taken + 1 + place // self.take <= version + max_lag for place, version in enumerate(later))

    def missing(self) -> str:
        names = ", ".join(lane.name for lane in self.lanes if not lane.ready)
        return f"{self.take} of its {len(self.lanes)} lanes (not ready: {names})"
