"""The parent's handle on a worker process: start it, send commands, wait for replies with a timeout, end it.

The process is a new program and not a fork: a fork copies locks that XLA's threads may hold, and deadlocks. When this
process ends, in whatever way, the pipe to the worker closes and the worker exits.
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

# Imports this directory as a package of its own, without the packages around it. `-P` keeps the working directory, with
# the user's modules, out of `sys.path` until the worker gets the parent's path.
BOOT = """
import sys, types
package = sys.modules["weft_worker"] = types.ModuleType("weft_worker")
package.__path__ = [sys.argv[1]]
from weft_worker.worker_main import main
main(*map(int, sys.argv[2:]))
"""
START_SECONDS = 60.0
# There is about one worker per core, so libraries must not start one thread per core. An environment that uses JAX must
# not claim an accelerator.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}


class WorkerLost(Exception):
    """A worker process ended or did not respond. The message says how."""


class WorkerProcess:
    """A running worker process."""

    def __init__(self, config: dict[str, Any], memory: int) -> None:
        commands, self._commands = os.pipe()
        self._replies, replies = os.pipe()
        inherited = (commands, replies, memory)
        command = [sys.executable, "-P", "-c", BOOT, str(Path(__file__).parent), *map(str, inherited)]
        environment = {**ENVIRONMENT, **os.environ, "JAX_PLATFORMS": "cpu"}
        # In a session of its own, so that Ctrl-C reaches only this process, which then ends the worker cleanly.
        self._process = subprocess.Popen(
            command, pass_fds=inherited, env=environment, stdin=subprocess.DEVNULL, start_new_session=True
        )
        os.close(commands)
        os.close(replies)
        self._poller = select.poll()
        self._poller.register(self._replies, select.POLLIN)
        self.send(framed(pickle.dumps({"path": sys.path, **config})))

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_until_ready(self) -> None:
        """Waits until the worker has loaded its environments."""
        if self.wait_for_reply(START_SECONDS, lambda: 0) != READY:
            raise WorkerLost(f"its worker process could not start: {self.read_message()}")

    def send(self, command: bytes) -> None:
        """Sends a command. If the worker is gone, waiting for the reply raises the error."""
        with contextlib.suppress(BrokenPipeError):
            write(self._commands, command)

    def wait_for_reply(self, timeout: float, progress: Callable[[], Any]) -> bytes:
        """Returns the reply byte to a command.

        Raises `WorkerLost` if the worker ended, or if the value of `progress` did not change for `timeout` seconds.
        """
        last_progress, deadline = None, time.monotonic() + timeout
        while not self._poller.poll(250 * min(timeout, 4.0)):
            if (now := progress()) != last_progress:
                last_progress, deadline = now, time.monotonic() + timeout
            elif time.monotonic() > deadline:
                self.kill()
                raise WorkerLost(f"it did not respond within {timeout:g} seconds, and its worker process was killed")
        reply = os.read(self._replies, 1)
        if not reply:
            raise WorkerLost(self._cause_of_death())
        return reply

    def read_message(self) -> Any:
        """Returns the message that follows some replies."""
        message = receive(self._replies)
        if message is None:
            raise WorkerLost(self._cause_of_death())
        return pickle.loads(message)

    def ask_to_exit(self) -> None:
        """Closes the pipes, so that the worker exits once it has finished its step. Does not wait for it."""
        for pipe in (self._commands, self._replies):
            with contextlib.suppress(OSError):
                os.close(pipe)
        self._commands = self._replies = -1

    def stop(self, grace: float = GRACE_SECONDS) -> None:
        """Ends the worker and waits for it. Kills it after `grace` seconds."""
        self.ask_to_exit()
        try:
            self._process.wait(grace)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """Kills the worker."""
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
