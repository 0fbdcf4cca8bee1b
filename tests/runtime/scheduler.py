"""A scheduler for tests: real threads, of which one runs at a time, and a schedule says which.

Code that waits through `Wait` gets its conditions from it. Here these hand control over: before and after a lock is
held, and while something is waited for, the schedule picks who goes on among all who can. Whoever waits can go on only
once it was notified, so a notification that is missing ends in a deadlock, and that is a failure: so is an endless run.

>>> from weft.runtime.channel import Stopwatch
>>> wait = Controlled(Interleaving(seed=3))
>>> condition, heard = wait.condition(), []
>>> def listen():
...     with condition:
...         wait.until(condition, lambda: "hello" in heard, Stopwatch("listener"), "a greeting")
>>> def speak():
...     with condition:
...         heard.append("hello")
>>> wait.scheduler.run(listener=listen, speaker=speak)
Traceback (most recent call last):
...
tests.runtime.scheduler.Deadlock: nobody can go on: listener waits for a greeting (which is there, but nobody said so) \
[Interleaving(seed=3, style='even', stay=0.0)]
"""

import random
import sys
import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate
from types import FrameType, SimpleNamespace
from typing import Any, Literal

import hypothesis.strategies as st

from weft.runtime.channel import Description, RunControl

# A run that takes more steps does not end, and whoever lets time pass more often alone does nothing else.
STEPS = 100_000
IDLE = 10


class Deadlock(AssertionError):
    """No thread can go on, or none comes to an end."""


class Abandoned(BaseException):
    """The run has failed, and every thread leaves."""


@dataclass(frozen=True)
class Interleaving:
    """Who goes on: whoever did, with a chance to `stay`; else as the style says.

    `even` is anybody alike, `uneven` makes some tasks much slower than others, and `ranked` lets the highest go on
    until it falls to the bottom.
    """

    seed: int
    style: Literal["even", "uneven", "ranked"] = "even"
    stay: float = 0.0

    @staticmethod
    def any() -> st.SearchStrategy["Interleaving"]:
        styles = st.sampled_from(("even", "uneven", "ranked"))
        return st.builds(Interleaving, st.integers(0, 2**40), styles, st.sampled_from((0.0, 0.5, 0.9)))

    def picker(self) -> Callable[[list["Task"], "Task | None"], "Task"]:
        draw = random.Random(self.seed).random
        known: dict[Task, float] = {}

        def even(able: list[Task], last: Task | None) -> Task:
            return last if last in able and draw() < self.stay else able[int(draw() * len(able))]

        def uneven(able: list[Task], last: Task | None) -> Task:
            if last in able and draw() < self.stay:
                return last
            ends = list(accumulate(known.setdefault(task, 0.01 + draw() ** 4) for task in able))
            return able[bisect_left(ends, draw() * ends[-1])]

        def ranked(able: list[Task], last: Task | None) -> Task:
            if last is not None and draw() > 0.8 + self.stay / 5:
                known[last] = -len(known) - draw()
            return max(able, key=lambda task: known.setdefault(task, draw()))

        return {"even": even, "uneven": uneven, "ranked": ranked}[self.style]


@dataclass(eq=False)
class Task:
    """A thread of the run, and what it needs in order to go on."""

    name: str
    work: Callable[[], Any]
    turn: threading.Lock
    lock: "Turns | None" = None
    """It must have this."""
    notice: "Turns | None" = None
    """It must be notified by this, unless its time runs out."""
    deadline: float | None = None
    idle: int = 0
    """How often its time has run out since anybody else did anything."""
    ready: Callable[[], Any] | None = None
    """What it waits for, to be said if it never comes."""
    finished: bool = False
    result: Any = None

    @property
    def able(self) -> bool:
        if self.finished or (self.lock is not None and self.lock.owner is not None):
            return False
        return self.notice is None or (self.deadline is not None and self.idle < IDLE)


@dataclass(eq=False)
class Scheduler:
    """One run of some tasks; it has a time of its own, which passes only where somebody waits for it."""

    schedule: Interleaving
    timeouts: bool = True
    """Whether waiting with a limit may come to it."""
    fine: str | None = None
    """A file: control may also change hands before each line of it, whether a lock is held or not."""
    invariant: Callable[[], None] = lambda: None
    """Called whenever control may change hands."""
    now: float = 0
    doing: Mapping[str, Description] = field(default_factory=dict)
    """Who waits for what."""

    def __post_init__(self) -> None:
        self.tasks: list[Task] = []
        self.last: Task | None = None
        self.steps = self.left = 0
        self.deciding = False
        self.failure: BaseException | None = None
        self.over, self.ending = threading.Lock(), threading.Lock()
        self.over.acquire()
        self.pick = self.schedule.picker()

    @property
    def current(self) -> Task | None:
        return self.last if self.left else None

    def run(self, **works: Callable[[], Any]) -> dict[str, Any]:
        """Run tasks to their end; what each returned."""
        workers = [_idle.pop() if _idle else Worker() for _ in works]
        self.tasks = [
            Task(name, work, worker.turn) for (name, work), worker in zip(works.items(), workers, strict=True)
        ]
        self.left = len(self.tasks)
        for worker, task in zip(workers, self.tasks, strict=True):
            worker.job = lambda task=task: self.live(task)
        if self.tasks:
            self.choose().turn.release()
            self.over.acquire()
        _idle.extend(workers)
        if self.failure is not None:
            raise self.failure
        return {task.name: task.result for task in self.tasks}

    def live(self, task: Task) -> None:
        """A task from its first turn to its last."""
        try:
            if self.failure is None:
                sys.settrace(self.trace if self.fine else None)
                task.result = task.work()
        except Abandoned:
            pass
        except BaseException as error:
            self.fail(error)
        sys.settrace(None)
        task.finished = True
        with self.ending:
            self.left -= 1
            left = self.left
        if not left:
            self.over.release()
        elif self.failure is None:
            with suppress(Abandoned):
                self.choose().turn.release()

    def point(self) -> None:
        """Control may change hands here."""
        task = self.last
        assert task is not None
        chosen = self.choose()
        if chosen is not task:
            chosen.turn.release()
            task.turn.acquire()
        if self.failure is not None:
            raise Abandoned

    def trace(self, frame: FrameType, event: str, _: Any) -> Any:
        """Called by Python before each line."""
        if frame.f_code.co_filename != self.fine:
            return None
        if event == "line" and not self.deciding:
            self.point()
        return self.trace

    def choose(self) -> Task:
        """Who goes on, with what it needs given to it."""
        if self.failure is not None:
            raise Abandoned
        self.deciding = True
        able = [task for task in self.tasks if task.able]
        self.steps += 1
        if not able or self.steps > STEPS:
            self.fail(Deadlock(self.describe()))
            raise Abandoned
        try:
            self.invariant()
        except BaseException as error:
            self.fail(error)
            raise Abandoned from error
        task = self.last = self.pick(able, self.last)
        if task.notice is not None:
            self.time_out(task)
        else:
            for other in self.tasks:
                other.idle = other.idle if other is task else 0
        if task.lock is not None:
            task.lock.owner, task.lock = task, None
        self.deciding = False
        return task

    def time_out(self, task: Task) -> None:
        assert task.notice is not None and task.deadline is not None
        task.notice.waiting.remove(task)
        self.now = max(self.now, task.deadline)
        task.notice, task.idle = None, task.idle + 1

    def fail(self, error: BaseException) -> None:
        """End the run: everybody else leaves from where it is."""
        if self.failure is None:
            self.failure = error
            for task in self.tasks:
                if not task.finished and task is not self.last:
                    task.turn.release()

    def describe(self) -> str:
        if self.steps > STEPS:
            return f"no end after {STEPS} steps [{self.schedule}]"
        stuck = [self.describe_task(task) for task in self.tasks if not task.finished]
        return f"nobody can go on: {'; '.join(stuck)} [{self.schedule}]"

    def describe_task(self, task: Task) -> str:
        what = self.doing.get(task.name, "a lock")
        there = task.ready is not None and task.notice is not None and task.ready()
        return f"{task.name} waits for {what if isinstance(what, str) else what()}" + (
            " (which is there, but nobody said so)" if there else ""
        )


class Turns(threading.Condition):
    """A condition under a scheduler. Outside of a run there is nothing to decide, and it does nothing."""

    def __init__(self, scheduler: Scheduler, beside: "Turns | None" = None) -> None:
        self.scheduler = scheduler
        self.lock = SimpleNamespace(owner=None) if beside is None else beside.lock
        self.waiting: deque[Task] = deque()

    @property
    def owner(self) -> Task | None:
        return self.lock.owner

    @owner.setter
    def owner(self, task: Task | None) -> None:
        self.lock.owner = task

    def __enter__(self) -> bool:
        task = self.scheduler.current
        if task is not None:
            assert self.owner is not task, f"{task.name} holds this lock already"
            task.lock = self
            self.scheduler.point()
        return True

    def __exit__(self, *_: object) -> None:
        if self.scheduler.current is not None and self.scheduler.failure is None:
            self.owner = None
            self.scheduler.point()

    def wait(self, timeout: float | None = None) -> Literal[True]:
        scheduler = self.scheduler
        task = scheduler.current
        assert task is not None and self.owner is task, "only whoever holds the lock may wait"
        task.notice = task.lock = self
        task.deadline = scheduler.now + timeout if timeout is not None and scheduler.timeouts else None
        self.waiting.append(task)
        self.owner = None
        scheduler.point()
        return True

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        """The limit on waiting is long: to come to it is to be stuck."""
        task = self.scheduler.current
        assert task is not None
        while not (result := predicate()):
            task.ready = predicate
            self.wait()
        task.ready = None
        return result

    def notify(self, n: int = 1) -> None:
        assert self.scheduler.current is None or self.owner is self.scheduler.current
        for _ in range(min(n, len(self.waiting))):
            self.waiting.popleft().notice = None

    def notify_all(self) -> None:
        self.notify(len(self.waiting))


class Controlled(RunControl):
    """What all parties of a run share, under a scheduler."""

    def __init__(self, schedule: Interleaving, *, timeouts: bool = True, fine: str | None = None) -> None:
        super().__init__()
        self.scheduler = Scheduler(schedule, timeouts, fine, doing=self.doing)

    def condition(self, beside: threading.Condition | None = None) -> threading.Condition:
        assert beside is None or isinstance(beside, Turns)
        condition = Turns(self.scheduler, beside)
        self.locks[condition] = None
        return condition


class Worker(threading.Thread):
    """A thread that does one job after the other: to start one costs as much as a short run."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.turn = threading.Lock()
        self.turn.acquire()
        self.job: Callable[[], None] = lambda: None
        self.start()

    def run(self) -> None:
        while True:
            self.turn.acquire()
            self.job()


_idle: list[Worker] = []
