"""A child process that evaluates snapshots of the policy while training continues.

A thread would not do: while it steps environments in Python it holds the interpreter lock, which training needs to step
its own. The parent writes each snapshot to a file and a request to the child's standard input; the child answers with
one line per evaluation (see `weft.evaluation.worker`). At most one request waits: a newer one replaces it.
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
from typing import Any

import cloudpickle

from weft.algorithm import Algorithm
from weft.envs.timestep import Env
from weft.evaluation.trained_params import TrainedParams
from weft.report.update import Evaluation


@dataclass(frozen=True)
class Request:
    """A snapshot to evaluate: the file with its parameters, and the environment steps that it was trained for."""

    steps: int
    path: str


class EvaluationProcess:
    """Runs evaluations in a child process, one at a time."""

    def __init__(self, algo: Algorithm, env_of: Callable[[int], Env], *, episodes: int):
        self._folder = tempfile.TemporaryDirectory(prefix="weft-eval-")
        self._process = _start(cloudpickle.dumps((algo, env_of, episodes)))
        self._replies: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read_replies, daemon=True)
        self._reader.start()
        self._running: Request | None = None
        self._waiting: Request | None = None

    def submit(self, steps: int, params: TrainedParams) -> None:
        """Evaluate `params` next; replaces a request that is still waiting."""
        path = Path(self._folder.name) / f"{steps}.safetensors"
        params.save(path)
        self._waiting = Request(steps, str(path))
        self._start_next()

    def results(self) -> list[Evaluation]:
        """Returns the evaluations that finished since the last call, without blocking."""
        finished = []
        while not self._replies.empty():
            finished += self._parse_reply(self._replies.get())
            self._start_next()
        return finished

    def finish(self) -> list[Evaluation]:
        """Wait for every submitted evaluation, end the process, and return the results."""
        _restore_priority(self._process.pid)
        finished = self.results()
        while self._running is not None:
            finished += self._parse_reply(self._replies.get())
            self._start_next()
        self.close()
        return finished

    def close(self) -> None:
        """Kill the process and delete its files. Idempotent."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(BrokenPipeError):
                assert pipe is not None
                pipe.close()
        self._folder.cleanup()

    def _start_next(self) -> None:
        if self._running is None and self._waiting is not None and self._process.poll() is None:
            self._running, self._waiting = self._waiting, None
            _write(self._process, json.dumps(vars(self._running)) + "\n")

    def _parse_reply(self, line: str) -> list[Evaluation]:
        """Returns the evaluation in a reply. A failed evaluation only prints a warning: training continues."""
        request, self._running = self._running, None
        reply: dict[str, Any] = (
            json.loads(line) if line else {"error": f"its process ended with code {self._process.wait()}"}
        )
        steps = request.steps if request else 0
        if "error" in reply:
            print(f"weft: warning: the evaluation at step {steps:,} failed: {reply['error']}", file=sys.stderr)
            return []
        return [Evaluation(steps, *(tuple(reply[name]) for name in ("returns", "lengths")))]

    def _read_replies(self) -> None:
        """Queue the child's replies, then an empty string when its output ends."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._replies.put(line.decode())
        self._replies.put("")


def _start(program: bytes) -> subprocess.Popen[bytes]:
    # Accelerators are for training: the child would take their memory.
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "weft.evaluation.worker"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
    _write(process, f"{len(program)}\n", program)
    return process


def _restore_priority(pid: int) -> None:
    """Give a process that runs at idle priority the normal one, because the run is now waiting for it."""
    if hasattr(os, "SCHED_IDLE"):
        with contextlib.suppress(PermissionError, ProcessLookupError):
            os.sched_setscheduler(pid, os.SCHED_OTHER, os.sched_param(0))
            os.sched_setaffinity(pid, os.sched_getaffinity(0))


def _write(process: subprocess.Popen[Any], line: str, data: bytes = b"") -> None:
    assert process.stdin is not None
    process.stdin.write(line.encode() + data)
    process.stdin.flush()
