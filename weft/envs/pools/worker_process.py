"""A worker process as its parent sees it: started, asked with a byte, waited for with a limit, and ended for good.

The process starts like any program, never as a fork of this one, whose threads (XLA has many) a fork would not survive.
Whatever way this process ends, the pipe to the worker closes and the worker leaves.
"""

import contextlib
import os
import pickle
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from weft.envs.pools.worker_main import GRACE_SECONDS, READY, framed, receive, write

# Imports this directory under its own name, without the packages around it. `-P` keeps the working directory, with the
# user's modules, out of `sys.path`.
BOOT = """
import sys, types
package = sys.modules["weft_worker"] = types.ModuleType("weft_worker")
package.__path__ = [sys.argv[1]]
from weft_worker.worker_main import main
main(*map(int, sys.argv[2:]))
"""
START_SECONDS = 60.0
# A worker is one of several and has one core: libraries that would start a thread for each core are told so, and an
# environment that uses JAX is kept off the accelerators.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}


class Gone(Exception):
    """A worker process that ended or did not answer; the text says how."""


class Process:
    """A running worker."""

    def __init__(self, config: dict[str, Any], memory: int) -> None:
        commands, self._commands = os.pipe()
        self._replies, replies = os.pipe()
        inherited = (commands, replies, memory)
        command = [sys.executable, "-P", "-c", BOOT, str(Path(__file__).parent), *map(str, inherited)]
        environment = {**ENVIRONMENT, **os.environ, "JAX_PLATFORMS": "cpu"}
        # In a session of its own, so that Ctrl-C reaches this process only, which then ends the worker properly.
        self._process = subprocess.Popen(
            command, pass_fds=inherited, env=environment, stdin=subprocess.DEVNULL, start_new_session=True
        )
        os.close(commands)
        os.close(replies)
        self._poller = select.poll()
        self._poller.register(self._replies, select.POLLIN)
        self.ask(framed(pickle.dumps({"path": sys.path, **config})))

    @property
    def pid(self) -> int:
        return self._process.pid

    def await_start(self) -> None:
        """Wait until the worker has loaded what it needs."""
        if self.answer(START_SECONDS, lambda: 0) != READY:
            raise Gone(f"its worker process could not start: {self.message()}")

    def ask(self, command: bytes) -> None:
        """Send a command; if the worker is gone, it is the wait for the answer that says so."""
        with contextlib.suppress(BrokenPipeError):
            write(self._commands, command)

    def answer(self, timeout: float, progress: Callable[[], Any]) -> bytes:
        """The byte that answers a command; `Gone` if the worker ended, or made no progress for `timeout` seconds."""
        seen, deadline = None, time.monotonic() + timeout
        while not self._poller.poll(250 * min(timeout, 4.0)):
            if (now := progress()) != seen:
                seen, deadline = now, time.monotonic() + timeout
            elif time.monotonic() > deadline:
                self.kill()
                raise Gone(f"it did not come back within {timeout:g} seconds, and its worker process was killed")
        reply = os.read(self._replies, 1)
        if not reply:
            raise Gone(self._cause_of_death())
        return reply

    def message(self) -> Any:
        """What follows a reply that announced a message."""
        message = receive(self._replies)
        if message is None:
            raise Gone(self._cause_of_death())
        return pickle.loads(message)

    def leave(self) -> None:
        """Tell the worker to end; it may take its time."""
        for pipe in (self._commands, self._replies):
            with contextlib.suppress(OSError):
                os.close(pipe)
        self._commands = self._replies = -1

    def end(self, grace: float = GRACE_SECONDS) -> None:
        """Make sure that the worker has ended; nothing of it remains."""
        self.leave()
        try:
            self._process.wait(grace)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End the worker at once."""
        self._process.kill()
        self._process.wait()

    def _cause_of_death(self) -> str:
        try:
            code = self._process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            return "its worker process closed its pipe"
        if code < 0:
            return f"its worker process was killed by {signal.Signals(-code).name}"
        return f"its worker process ended with exit code {code}"
