"""The program of a worker process: reads a command byte, steps its environments, writes a reply byte.

`worker_process` starts it and imports this directory as the package `weft_worker`: importing weft itself would import
JAX, which takes seconds and may claim a device. Only numbers, text and the pickled environment cross between the two
processes, so they need not share any class.

A worker exits when the pipe from its parent closes: the pool was closed, or the parent is gone.
"""

import os
import pickle
import select
import struct
import sys
import threading
import time
from typing import Any

import cloudpickle

from .arrays import ActionSplitter, ArraySpec, ObservationWriter
from .sequential import EpisodeEnd, RowFailure, SequentialEnvs
from .shared_arrays import SharedArrays

WITH_LAST, RESET = 2, 4
"""Bits of a command. The lowest bit selects one of the two sets of observation arrays to write."""
TERMINATED, TRUNCATED, DROPPED = 1, 2, 4
"""Bits of a row's flags, which say how its episode ended. A dropped episode is also truncated."""
READY, DONE, ENDED, RESTARTED, FAILED = b"R", b".", b"e", b"r", b"!"
"""Replies. A message follows `RESTARTED` and `FAILED`."""
GRACE_SECONDS = 2.0
_LENGTH = struct.Struct("!I")


def main(commands: int, replies: int, memory: int) -> None:
    """Serves commands until the pipe `commands` closes. The arguments are file descriptors."""
    threading.Thread(target=_exit_with_parent, args=(commands,), daemon=True).start()
    config = pickle.loads(receive(commands) or b"")
    sys.path[:] = config["path"]
    try:
        worker = _Worker(config, SharedArrays(config["shared_specs"], memory))
    except Exception as error:
        write(replies, FAILED + framed(pickle.dumps(f"{type(error).__name__}: {error}")))
        return
    os.write(replies, READY)
    while command := os.read(commands, 1):
        write(replies, worker.serve(command[0]))
    worker.envs.close()


def write(file: int, message: bytes) -> None:
    """Writes a whole message to a pipe."""
    while message:
        message = message[os.write(file, message) :]


def framed(message: bytes) -> bytes:
    """Returns a message with its length in front."""
    return _LENGTH.pack(len(message)) + message


def receive(file: int) -> bytes | None:
    """Reads the next framed message. Returns None if the pipe was closed."""
    length = _read_exactly(file, _LENGTH.size)
    return None if length is None else _read_exactly(file, _LENGTH.unpack(length)[0])


class _Worker:
    """The environments of one worker, on its rows of the shared arrays."""

    def __init__(self, config: dict[str, Any], shared: SharedArrays) -> None:
        rows = slice(config["first_row"], config["first_row"] + len(config["seeds"]))
        own = {
            name: [array[rows] for array in shared[name]] for name in config["shared_specs"] if name != "current_row"
        }
        self._obs_buffers = own["obs"], own["next_obs"]
        self._action, self._final = own["action"], own["final"]
        self._reward, self._flags, self._last, self._restarts = (
            own[name][0] for name in ("reward", "flags", "last", "restarts")
        )
        specs = tuple(ArraySpec(*spec) for spec in config["observation_specs"])
        self.envs = SequentialEnvs(
            cloudpickle.loads(config["factory"]),
            config["seeds"],
            writer=ObservationWriter(specs, masked=config["masked"]),
            actions=ActionSplitter(cloudpickle.loads(config["action_space"])),
            restart=config["restart"],
            restarts=config["restarts"],
            steps=config["steps"],
        )
        self.envs.current_row = shared["current_row"][config["worker"]]

    def serve(self, command: int) -> bytes:
        """Executes a command and returns the reply."""
        out = self._obs_buffers[command & 1]
        try:
            if command & RESET:
                self.envs.reset(out)
                reply = DONE
            else:
                reply = self._step(out, self._last if command & WITH_LAST else None)
        except RowFailure as failure:
            return FAILED + framed(pickle.dumps(_failure_message(failure)))
        self._restarts[:] = self.envs.restarts
        return reply

    def _step(self, out: list, last: Any) -> bytes:
        reward, ends = self.envs.step(self._action, last, out)
        self._reward[:] = reward
        if not ends:
            return DONE
        self._flags[:] = 0
        for end in ends:
            self._flags[end.row] = TERMINATED if end.terminated else TRUNCATED | (DROPPED if end.failure else 0)
            for array, row in zip(self._final, end.final, strict=True):
                array[end.row] = row
        failures = _failure_messages(ends)
        return RESTARTED + framed(pickle.dumps(failures)) if failures else ENDED


def _failure_messages(ends: list[EpisodeEnd]) -> list[dict[str, Any]]:
    return [_failure_message(end.failure) for end in ends if end.failure]


def _failure_message(failure: RowFailure) -> dict[str, Any]:
    """Returns the fields of a failure, and the pickled exception that caused it if it can be pickled."""
    names = ("row", "seed", "steps", "episode_steps", "reason")
    return {name: getattr(failure, name) for name in names} | {"cause": _pickled(failure.__cause__)}


def _pickled(error: BaseException | None) -> bytes | None:
    try:
        message = cloudpickle.dumps(error)
        pickle.loads(message)
        return message
    except Exception:
        return None


def _exit_with_parent(commands: int) -> None:
    """Ends this process soon after its parent is gone, even if an environment hangs."""
    poller = select.poll()
    poller.register(commands, 0)
    poller.poll()
    time.sleep(GRACE_SECONDS)
    os._exit(1)


def _read_exactly(file: int, length: int) -> bytes | None:
    message = b""
    while len(message) < length:
        more = os.read(file, length - len(message))
        if not more:
            return None
        message += more
    return message
