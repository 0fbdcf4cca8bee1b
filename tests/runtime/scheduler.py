"""A deterministic thread scheduler for tests: one real thread runs at a time, and an `Interleaving` chooses which one.

Code that waits through `RunControl` gets its conditions from it. Under `ScheduledControl` these conditions hand over
control: at every lock, unlock and wait, the interleaving picks one of the threads that can continue. A waiting thread
can continue only after a notification, so a missing notification leads to a deadlock. The scheduler reports a deadlock,
or a run that does not end, as a failure.

>>> from weft.runtime.channel import Stopwatch
>>> control = ScheduledControl(Interleaving(seed=3))
>>> condition, messages = control.condition(), []
>>> def listen():
...     with condition:
...         control.wait_until(condition, lambda: "hello" in messages, Stopwatch("listener"), "a greeting")
>>> def speak():
...     with condition:
...         messages.append("hello")
>>> control.scheduler.run(listener=listen, speaker=speak)
Traceback (most recent call last):
...
tests.runtime.scheduler.Deadlock: no thread can continue: listener waits for a greeting (true, but not notified) \
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

# A run with more steps counts as endless.
MAX_STEPS = 100_000
# A task that times out this often, while no other task does anything, counts as unable to continue.
MAX_IDLE_TIMEOUTS = 10


class Deadlock(AssertionError):
    """No thread can continue, or the run does not end."""


class Abandoned(BaseException):
    """The run has failed, and every thread must exit."""


@dataclass(frozen=True)
class Interleaving:
    """Chooses the task that continues. The last task continues with probability `stay`, else the style decides.

    `even` chooses uniformly. `uneven` makes some tasks much slower than others. `ranked` lets the task with the highest
    rank continue until it drops to the lowest rank.
    """

    seed: int
    style: Literal["even", "uneven", "ranked"] = "even"
    stay: float = 0.0

    @staticmethod
    def any() -> st.SearchStrategy["Interleaving"]:
        styles = st.sampled_from(("even", "uneven", "ranked"))
        return st.builds(Interleaving, st.integers(0, 2**40), styles, st.sampled_from((0.0, 0.5, 0.9)))

    def picker(self) -> Callable[[list["Task"], "Task | None"], "Task"]:
        """Returns the function that picks from the tasks that can continue, given the last task."""
        draw = random.Random(self.seed).random
        weights: dict[Task, float] = {}
        ranks: dict[Task, float] = {}

        def even(able: list[Task], last: Task | None) -> Task:
            return last if last in able and draw() < self.stay else able[int(draw() * len(able))]

        def uneven(able: list[Task], last: Task | None) -> Task:
            if last in able and draw() < self.stay:
                return last
            sums = list(accumulate(weights.setdefault(task, 0.01 + draw() ** 4) for task in able))
            return able[bisect_left(sums, draw() * sums[-1])]

        def ranked(able: list[Task], last: Task | None) -> Task:
            if last is not None and draw() > 0.8 + self.stay / 5:
                ranks[last] = -len(ranks) - draw()
            return max(able, key=lambda task: ranks.setdefault(task, draw()))

        return {"even": even, "uneven": uneven, "ranked": ranked}[self.style]


@dataclass(eq=False)
class Task:
    """A thread of the run, with the conditions under which it can continue."""

    name: str
    function: Callable[[], Any]
    turn: threading.Lock
    """Released when it is the task's turn."""
    lock: "ScheduledCondition | None" = None
    """The task needs this lock to continue."""
    notifier: "ScheduledCondition | None" = None
    """The task needs a notification of this condition to continue, or its timeout."""
    deadline: float | None = None
    idle_timeouts: int = 0
    """How often the task has timed out since another task did anything."""
    predicate: Callable[[], Any] | None = None
    """The predicate that the task waits for, for the report of a deadlock."""
    finished: bool = False
    result: Any = None

    @property
    def able(self) -> bool:
        """Whether the task can continue."""
        if self.finished or (self.lock is not None and self.lock.owner is not None):
            return False
        return self.notifier is None or (self.deadline is not None and self.idle_timeouts < MAX_IDLE_TIMEOUTS)


@dataclass(eq=False)
class Scheduler:
    """Runs tasks, one at a time. Its simulated clock advances only when a wait times out."""

    interleaving: Interleaving
    timeouts: bool = True
    """Whether a wait with a timeout may time out."""
    traced_file: str | None = None
    """Control may also change hands before each line of this file, whether a lock is held or not."""
    invariant: Callable[[], None] = lambda: None
    """Checked at every point where control may change hands."""
    now: float = 0
    waits: Mapping[str, Description] = field(default_factory=dict)
    """The event that each task waits for."""

    def __post_init__(self) -> None:
        self.tasks: list[Task] = []
        self.last: Task | None = None
        self.steps = self.unfinished = 0
        self.choosing = False
        self.failure: BaseException | None = None
        self.all_finished, self.finishing = threading.Lock(), threading.Lock()
        self.all_finished.acquire()
        self.pick = self.interleaving.picker()

    @property
    def current(self) -> Task | None:
        """The running task, or None outside of a run."""
        return self.last if self.unfinished else None

    def run(self, **functions: Callable[[], Any]) -> dict[str, Any]:
        """Runs each function as a task until all have ended. Returns their results by name."""
        workers = [_idle_workers.pop() if _idle_workers else Worker() for _ in functions]
        self.tasks = [
            Task(name, function, worker.turn)
            for (name, function), worker in zip(functions.items(), workers, strict=True)
        ]
        self.unfinished = len(self.tasks)
        for worker, task in zip(workers, self.tasks, strict=True):
            worker.job = lambda task=task: self.run_task(task)
        if self.tasks:
            self.choose_next().turn.release()
            self.all_finished.acquire()
        _idle_workers.extend(workers)
        if self.failure is not None:
            raise self.failure
        return {task.name: task.result for task in self.tasks}

    def run_task(self, task: Task) -> None:
        """Runs a task on its worker's thread, from its first turn to its last."""
        try:
            if self.failure is None:
                sys.settrace(self.trace if self.traced_file else None)
                task.result = task.function()
        except Abandoned:
            pass
        except BaseException as error:
            self.fail(error)
        sys.settrace(None)
        task.finished = True
        with self.finishing:
            self.unfinished -= 1
            unfinished = self.unfinished
        if not unfinished:
            self.all_finished.release()
        elif self.failure is None:
            with suppress(Abandoned):
                self.choose_next().turn.release()

    def switch_point(self) -> None:
        """Lets another task continue, if the interleaving picks one."""
        task = self.last
        assert task is not None
        chosen = self.choose_next()
        if chosen is not task:
            chosen.turn.release()
            task.turn.acquire()
        if self.failure is not None:
            raise Abandoned

    def trace(self, frame: FrameType, event: str, _: Any) -> Any:
        """Called by Python before each line."""
        if frame.f_code.co_filename != self.traced_file:
            return None
        if event == "line" and not self.choosing:
            self.switch_point()
        return self.trace

    def choose_next(self) -> Task:
        """Picks the task that continues, and gives it the lock that it needs."""
        if self.failure is not None:
            raise Abandoned
        self.choosing = True
        able = [task for task in self.tasks if task.able]
        self.steps += 1
        if not able or self.steps > MAX_STEPS:
            self.fail(Deadlock(self.describe_deadlock()))
            raise Abandoned
        try:
            self.invariant()
        except BaseException as error:
            self.fail(error)
            raise Abandoned from error
        task = self.last = self.pick(able, self.last)
        if task.notifier is not None:
            self.time_out(task)
        else:
            for other in self.tasks:
                other.idle_timeouts = other.idle_timeouts if other is task else 0
        if task.lock is not None:
            task.lock.owner, task.lock = task, None
        self.choosing = False
        return task

    def time_out(self, task: Task) -> None:
        assert task.notifier is not None and task.deadline is not None
        task.notifier.waiting.remove(task)
        self.now = max(self.now, task.deadline)
        task.notifier, task.idle_timeouts = None, task.idle_timeouts + 1

    def fail(self, error: BaseException) -> None:
        """Ends the run with an error: all other tasks exit."""
        if self.failure is None:
            self.failure = error
            for task in self.tasks:
                if not task.finished and task is not self.last:
                    task.turn.release()

    def describe_deadlock(self) -> str:
        if self.steps > MAX_STEPS:
            return f"no end after {MAX_STEPS} steps [{self.interleaving}]"
        waits = [self.describe_wait(task) for task in self.tasks if not task.finished]
        return f"no thread can continue: {'; '.join(waits)} [{self.interleaving}]"

    def describe_wait(self, task: Task) -> str:
        event = self.waits.get(task.name, "a lock")
        missed = task.predicate is not None and task.notifier is not None and task.predicate()
        return f"{task.name} waits for {event if isinstance(event, str) else event()}" + (
            " (true, but not notified)" if missed else ""
        )


class ScheduledCondition(threading.Condition):
    """A condition under a scheduler. Outside of a run it has no effect."""

    def __init__(self, scheduler: Scheduler, same_lock_as: "ScheduledCondition | None" = None) -> None:
        self.scheduler = scheduler
        self.lock = SimpleNamespace(owner=None) if same_lock_as is None else same_lock_as.lock
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
            assert self.owner is not task, f"{task.name} already holds this lock"
            task.lock = self
            self.scheduler.switch_point()
        return True

    def __exit__(self, *_: object) -> None:
        if self.scheduler.current is not None and self.scheduler.failure is None:
            self.owner = None
            self.scheduler.switch_point()

    def wait(self, timeout: float | None = None) -> Literal[True]:
        scheduler = self.scheduler
        task = scheduler.current
        assert task is not None and self.owner is task, "a task must hold the lock to wait"
        task.notifier = task.lock = self
        task.deadline = scheduler.now + timeout if timeout is not None and scheduler.timeouts else None
        self.waiting.append(task)
        self.owner = None
        scheduler.switch_point()
        return True

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        """Waits without a timeout, because reaching `stuck_after` would be a deadlock."""
        task = self.scheduler.current
        assert task is not None
        while not (result := predicate()):
            task.predicate = predicate
            self.wait()
        task.predicate = None
        return result

    def notify(self, n: int = 1) -> None:
        assert self.scheduler.current is None or self.owner is self.scheduler.current
        for _ in range(min(n, len(self.waiting))):
            self.waiting.popleft().notifier = None

    def notify_all(self) -> None:
        self.notify(len(self.waiting))


class ScheduledControl(RunControl):
    """A `RunControl` whose conditions are under a scheduler."""

    def __init__(self, interleaving: Interleaving, *, timeouts: bool = True, traced_file: str | None = None) -> None:
        super().__init__()
        self.scheduler = Scheduler(interleaving, timeouts, traced_file, waits=self.waits)

    def condition(self, same_lock_as: threading.Condition | None = None) -> threading.Condition:
        assert same_lock_as is None or isinstance(same_lock_as, ScheduledCondition)
        condition = ScheduledCondition(self.scheduler, same_lock_as)
        self.locks[condition] = None
        return condition


class Worker(threading.Thread):
    """A thread that executes one job after the other. Starting a thread takes as long as a short run."""

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


_idle_workers: list[Worker] = []
