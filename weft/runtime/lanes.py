"""Lanes and registers: which version a lane starts an iteration from, and which lanes the consumer uses next.

A lane is a part of the environments that iterates at its own pace. Each replica of the consumer (a learner) serves
several lanes: one of its iterations consumes `take` ready lanes, and ends by publishing the next version of the values
that the lanes read. Every iteration of a lane passes three points:

- it *begins*, and reads the latest version;
- it becomes *ready* when its work is done, or when it blocks on the consumer (on a reply, or on space in a stream);
- it is *consumed*, and only then can the lane begin its next iteration. So a lane has at most one unconsumed iteration,
  which bounds the memory in use.

The lag of an iteration is the number of versions published between the one that it began from and the one that consumes
it. With `max_lag`, two rules bound the lag, and neither can deadlock:

- a lane begins only if its iteration could be consumed in time after all iterations in progress, oldest first;
- the consumer does not use a batch that would make another iteration in progress too late. It waits for the slow lane.

When the consumer waits, it has published all of its versions. So lanes may begin until `take` of them are in progress,
and each of those becomes ready without waiting for anything but the consumer.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from weft.runtime.channel import RunControl, Stopwatch


def _no_copy(value: Any) -> Any:
    return value


@dataclass
class PublishedValue:
    """One version of the values in a register, with a copy for each device that read it."""

    value: Any = None
    copies: dict[Any, Any] = field(default_factory=dict)

    def on(self, device: Any, transfer: Callable[[Any], Any]) -> Any:
        """Returns the value on a device. The first call for each device copies it with `transfer`."""
        if device not in self.copies:
            self.copies[device] = transfer(self.value)
        return self.copies[device]


@dataclass
class Register:
    """The latest version published by a `free` role. Reading never blocks."""

    control: RunControl
    latest: PublishedValue = field(default_factory=PublishedValue)

    def __post_init__(self) -> None:
        self.condition = self.control.condition()

    def read(self, device: Any = None, transfer: Callable[[Any], Any] = _no_copy) -> Any:
        with self.condition:
            return self.latest.on(device, transfer)

    def publish(self, value: Any) -> None:
        with self.condition:
            self.latest = PublishedValue(value)


@dataclass(eq=False)
class Lane:
    """The progress of one lane. Iterations are numbered from 1."""

    name: str
    begun: int = 0
    """The last iteration that has begun."""
    ready: int = 0
    """The last iteration that has become ready."""
    consumed: int = 0
    """The last iteration that has been consumed."""
    read: int = 0
    """The last iteration for which the register was read."""
    version: int = 0
    """The version that the current iteration began from: the oldest that one of its replicas has read."""
    ready_order: int = 0
    """The position of the lane's last ready event among those of all lanes."""

    @property
    def in_progress(self) -> bool:
        return self.begun > self.consumed

    @property
    def is_ready(self) -> bool:
        return self.in_progress and self.ready == self.begun


@dataclass
class Admission:
    """Decides which lanes of one consumer replica may begin and which are consumed. Holds the register they read."""

    control: RunControl
    consumer: str
    names: tuple[str, ...]
    """The name of every lane."""
    take: int
    """The number of lanes that one iteration of the consumer uses."""
    iterations: int
    """The total over all lanes. A fast lane executes more of them than a slow one."""
    max_lag: int | None = None
    published: PublishedValue = field(default_factory=PublishedValue)
    """The latest version."""
    lags: Counter[int] = field(default_factory=Counter)
    """The number of consumed iterations, by lag."""

    def __post_init__(self) -> None:
        self.lanes = [Lane(name) for name in self.names]
        # Lanes and the consumer wait on separate conditions, so that each is woken only by changes that concern it.
        self.condition = self.control.condition()
        self.batch_possible = self.control.condition(same_lock_as=self.condition)
        # Totals over all lanes: iterations begun, versions published, batches formed, ready events.
        self.begun = self.version = self.batches = self.ready_events = 0
        self.batch_wait = Stopwatch(self.consumer)
        self.batch_lags: list[int] = []
        self.max_ready = 0

    def begin(self, index: int, iteration: int, stopwatch: Stopwatch) -> bool:
        """Begins an iteration of a lane, once for all replicas of the lane. Returns False if no iterations are left."""
        lane = self.lanes[index]
        with self.condition:
            if lane.begun < iteration:
                event = f"{self.consumer} to consume its last iteration, or to come within max_lag"
                self.control.wait_until(
                    self.condition,
                    lambda: lane.begun >= iteration or self.all_begun or self.can_begin(lane),
                    stopwatch,
                    event,
                )
            if lane.begun < iteration and not self.all_begun:
                lane.begun += 1
                self.begun += 1
                lane.version = self.version
                self.condition.notify_all()
            return lane.begun >= iteration

    def read(self, index: int, device: Any = None, transfer: Callable[[Any], Any] = _no_copy) -> Any:
        """Returns the latest version on a device. `transfer` copies it there, once per version and device."""
        with self.condition:
            lane = self.lanes[index]
            if lane.read < lane.begun:
                # The lane's other replicas may read later, hence newer versions. The oldest one defines the lag.
                lane.read, lane.version = lane.begun, self.version
                self.batch_possible.notify_all()
            return self.published.on(device, transfer)

    def mark_ready(self, index: int, iteration: int) -> None:
        """Records that an iteration of a lane is done, or blocks on the consumer."""
        lane = self.lanes[index]
        if lane.ready < iteration:
            with self.condition:
                if lane.ready < iteration:
                    lane.ready = iteration
                    self.ready_events += 1
                    lane.ready_order = self.ready_events
                    self.max_ready = max(self.max_ready, self.ready_count)
                    self.batch_possible.notify_all()

    def form_batch(self) -> list[int]:
        """Waits until enough lanes are ready, and consumes their iterations. Returns the lanes' indices, ascending."""
        with self.condition:
            chosen: list[Lane] = []

            def choose() -> list[Lane]:
                nonlocal chosen
                chosen = self.choose_lanes()
                return chosen

            self.control.wait_until(self.batch_possible, choose, self.batch_wait, self.describe_unready)
            self.batch_lags = [self.batches - lane.version for lane in chosen]
            self.lags.update(self.batch_lags)
            for lane in chosen:
                lane.consumed = lane.begun
            self.batches += 1
            self.condition.notify_all()
            return [index for index, lane in enumerate(self.lanes) if lane in chosen]

    def publish(self, value: Any) -> None:
        """Publishes the next version of the values that the lanes read."""
        with self.condition:
            self.published = PublishedValue(value)
            self.version += 1
            self.condition.notify_all()

    @property
    def ready_count(self) -> int:
        return sum(lane.is_ready for lane in self.lanes)

    @property
    def all_begun(self) -> bool:
        """Whether no iteration is left to begin."""
        return self.begun == self.iterations

    def can_begin(self, lane: Lane) -> bool:
        # One iteration is reserved for each other lane that has not begun: every lane must have a final state.
        reserved = sum(other.begun == 0 for other in self.lanes if other is not lane)
        if lane.in_progress or self.iterations - self.begun <= reserved and lane.begun:
            return False
        if self.max_lag is None:
            return True
        in_progress = sum(other.in_progress for other in self.lanes)
        return self.batches + in_progress // self.take <= self.version + self.max_lag

    def choose_lanes(self) -> list[Lane]:
        """Chooses the ready lanes with the oldest versions. Empty if that batch would break the bound on lag."""
        ready = [lane for lane in self.lanes if lane.is_ready]
        if len(ready) < self.take:
            return []
        chosen = sorted(ready, key=lambda lane: (lane.version, lane.ready_order))[: self.take]
        return chosen if self.max_lag is None or self.leaves_others_in_time(chosen, self.max_lag) else []

    def leaves_others_in_time(self, chosen: list[Lane], max_lag: int) -> bool:
        """Whether all other iterations in progress can be consumed within `max_lag` after this batch."""
        versions = sorted(lane.version for lane in self.lanes if lane.in_progress and lane not in chosen)
        return all(
            self.batches + 1 + position // self.take <= version + max_lag for position, version in enumerate(versions)
        )

    def describe_unready(self) -> str:
        names = ", ".join(lane.name for lane in self.lanes if not lane.is_ready)
        return f"{self.take} of its {len(self.lanes)} lanes (not ready: {names})"
