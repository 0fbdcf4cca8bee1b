"""Evaluation while training goes on, in a process of its own that takes only the time nobody else wants.

What was learned so far goes to it as a file, the returns come back as a line. A thread would not do: it would hold
Python's lock while environments are stepped, just when training wants to step its own. If evaluating takes longer than
the time to the next, the newest that waits is the one that is played.
"""

import contextlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import cloudpickle
import jax

from weft.algorithm import Algorithm
from weft.envs.timestep import Env
from weft.errors import WeftError
from weft.evaluation.learned import Learned, Learning
from weft.report.update import Evaluation


class Evaluations:
    """The evaluations of one run: none, or one whenever another `every` steps are done, and one at the end."""

    def __init__(self, algo: Algorithm, env_of: Callable[[int], Env], *, every: int | None, episodes: int):
        self._every = every
        self._strand: EvaluationStrand | None = None
        self.last: float | None = None
        if every is not None:
            if every < 1 or episodes < 1:
                raise WeftError(f"eval_every={every} with eval_episodes={episodes}: both must be at least 1")
            # Found out now, not when the first evaluation is due.
            self._learning = Learning(algo, env_of)
            jax.eval_shape(lambda net: algo.player(env_of(1), net, greedy=True)[0], self._learning.shapes.net)
            self._strand = EvaluationStrand(algo, env_of, episodes=episodes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._strand:
            self._strand.close()

    def due(self, before: int, now: int, *, last: bool) -> bool:
        """Whether to evaluate `now`, after so many steps, when `before` was the last chance."""
        return self._every is not None and (last or now // self._every > before // self._every)

    def send(self, steps: int, state: Any) -> None:
        """Evaluate what a state has learned."""
        if self._strand:
            self._strand.send(steps, self._learning.of(state))

    def results(self) -> tuple[Evaluation, ...]:
        """Those that have come back since the last call."""
        return self._noted(self._strand.results() if self._strand else [])

    def finish(self) -> tuple[Evaluation, ...]:
        """Those that are still under way."""
        return self._noted(self._strand.finish() if self._strand else [])

    def _noted(self, found: list[Evaluation]) -> tuple[Evaluation, ...]:
        if found:
            self.last = found[-1].return_mean
        return tuple(found)


@dataclass(frozen=True)
class Job:
    """What to play: parameters in a file, and when they were learned."""

    steps: int
    path: str


class EvaluationStrand:
    """A process that plays with what it is sent; `results` gives what has come back since it was last asked."""

    def __init__(self, algo: Algorithm, env_of: Callable[[int], Env], *, episodes: int):
        self._folder = tempfile.TemporaryDirectory(prefix="weft-eval-")
        self._process = _start(cloudpickle.dumps((algo, env_of, episodes)))
        self._answers: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._playing: Job | None = None
        self._waiting: Job | None = None

    def send(self, steps: int, what: Learned) -> None:
        """Play with this next, instead of whatever else was waiting."""
        path = Path(self._folder.name) / f"{steps}.safetensors"
        what.save(path)
        self._waiting = Job(steps, str(path))
        self._next()

    def results(self) -> list[Evaluation]:
        """What was played since the last call."""
        found = []
        while not self._answers.empty():
            found += self._result(self._answers.get())
            self._next()
        return found

    def finish(self) -> list[Evaluation]:
        """Wait for all that was sent to be played, and end."""
        _hurry(self._process.pid)
        found = self.results()
        while self._playing is not None:
            found += self._result(self._answers.get())
            self._next()
        self.close()
        return found

    def close(self) -> None:
        """End at once; closing twice is harmless."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(BrokenPipeError):
                assert pipe is not None
                pipe.close()
        self._folder.cleanup()

    def _next(self) -> None:
        if self._playing is None and self._waiting is not None and self._process.poll() is None:
            self._playing, self._waiting = self._waiting, None
            _write(self._process, json.dumps(vars(self._playing)) + "\n")

    def _result(self, line: str) -> list[Evaluation]:
        """What an answer says; training goes on without an evaluation that failed."""
        job, self._playing = self._playing, None
        answer: dict[str, Any] = (
            json.loads(line) if line else {"error": f"its process ended with code {self._process.wait()}"}
        )
        steps = job.steps if job else 0
        if "error" in answer:
            print(f"weft: warning: the evaluation at step {steps:,} failed: {answer['error']}", file=sys.stderr)
            return []
        return [Evaluation(steps, *(tuple(answer[name]) for name in ("returns", "lengths")))]

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line.decode())
        self._answers.put("")


def _start(program: bytes) -> subprocess.Popen[bytes]:
    # A GPU is for training; and what runs beside it must not take its memory.
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "weft.evaluation.worker"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
    _write(process, f"{len(program)}\n", program)
    return process


def _hurry(pid: int) -> None:
    """Let a process that gives way to others do so no longer: somebody waits for it."""
    if hasattr(os, "SCHED_IDLE"):
        with contextlib.suppress(PermissionError, ProcessLookupError):
            os.sched_setscheduler(pid, os.SCHED_OTHER, os.sched_param(0))
            os.sched_setaffinity(pid, os.sched_getaffinity(0))


def _write(process: subprocess.Popen[Any], line: str, data: bytes = b"") -> None:
    assert process.stdin is not None
    process.stdin.write(line.encode() + data)
    process.stdin.flush()
