"""The process that runs some environments of a pool: waits for a byte, steps its block, answers with a byte.

It is started by `process` with this folder under a name of its own, `weft_worker`: importing weft itself would import
JAX, which takes seconds and may claim a device. Only numbers, text and the pickled environment travel between the two
processes, so that they need not share any class.

A worker ends when the pipe from its parent closes: because the pool was closed, or because the parent is gone.
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

from .arrays import Actions, Field, Fields
from .sequential import Block, Broken, End
from .shared_arrays import Shared

WITH_LAST, RESET = 2, 4
"""Bits of a command; the lowest says which of the two sets of observation arrays to write."""
TERMINATED, TRUNCATED, LOST = 1, 2, 4
"""Bits of what a row's flag says of its episode; one that is lost counts as truncated too."""
READY, DONE, ENDED, RESTARTED, BROKEN = b"R", b".", b"e", b"r", b"!"
GRACE_SECONDS = 2.0
_LENGTH = struct.Struct("!I")


def main(commands: int, replies: int, memory: int) -> None:
    """Serve until the pipe `commands` closes; the arguments are open files."""
    threading.Thread(target=_leave_with_parent, args=(commands,), daemon=True).start()
    config = pickle.loads(receive(commands) or b"")
    sys.path[:] = config["path"]
    try:
        worker = _Worker(config, Shared(config["parts"], memory))
    except Exception as error:
        write(replies, BROKEN + framed(pickle.dumps(f"{type(error).__name__}: {error}")))
        return
    os.write(replies, READY)
    while command := os.read(commands, 1):
        write(replies, worker.serve(command[0]))
    worker.block.close()


def write(file: int, message: bytes) -> None:
    """Write all of a message to a pipe."""
    while message:
        message = message[os.write(file, message) :]


def framed(message: bytes) -> bytes:
    """A message with its length before it."""
    return _LENGTH.pack(len(message)) + message


def receive(file: int) -> bytes | None:
    """The next framed message; None where the writer is gone."""
    length = _exactly(file, _LENGTH.size)
    return None if length is None else _exactly(file, _LENGTH.unpack(length)[0])


class _Worker:
    """A block of environments over its rows of the shared arrays."""

    def __init__(self, config: dict[str, Any], shared: Shared) -> None:
        rows = slice(config["first"], config["first"] + len(config["seeds"]))
        view = {name: [array[rows] for array in shared[name]] for name in config["parts"] if name != "at"}
        self._buffers = view["obs"], view["next_obs"]
        self._action, self._final = view["action"], view["final"]
        self._reward, self._flags, self._last, self._restarts = (
            view[name][0] for name in ("reward", "flags", "last", "restarts")
        )
        fields = Fields(tuple(Field(*field) for field in config["fields"]), masked=config["masked"])
        self.block = Block(
            cloudpickle.loads(config["factory"]),
            config["seeds"],
            fields=fields,
            actions=Actions(cloudpickle.loads(config["action_space"])),
            restart=config["restart"],
            restarts=config["restarts"],
            steps=config["steps"],
        )
        self.block.at = shared["at"][config["number"]]

    def serve(self, command: int) -> bytes:
        """Do what a command says, and the reply to it."""
        out = self._buffers[command & 1]
        try:
            if command & RESET:
                self.block.reset(out)
                reply = DONE
            else:
                reply = self._step(out, self._last if command & WITH_LAST else None)
        except Broken as broken:
            return BROKEN + framed(pickle.dumps(_told(broken)))
        self._restarts[:] = self.block.restarts
        return reply

    def _step(self, out: list, last: Any) -> bytes:
        reward, ends = self.block.step(self._action, last, out)
        self._reward[:] = reward
        if not ends:
            return DONE
        self._flags[:] = 0
        for end in ends:
            self._flags[end.row] = TERMINATED if end.terminated else TRUNCATED | (LOST if end.broken else 0)
            for array, row in zip(self._final, end.final, strict=True):
                array[end.row] = row
        return ENDED if not any(end.broken for end in ends) else RESTARTED + framed(pickle.dumps(_reasons(ends)))


def _reasons(ends: list[End]) -> list[dict[str, Any]]:
    return [_told(end.broken) for end in ends if end.broken]


def _told(broken: Broken) -> dict[str, Any]:
    """A failure in words and numbers, with the exception itself if it can travel."""
    told: dict[str, Any] = {name: getattr(broken, name) for name in ("row", "seed", "steps", "episode_steps", "reason")}
    return told | {"cause": _portable(broken.__cause__)}


def _portable(error: BaseException | None) -> bytes | None:
    try:
        message = cloudpickle.dumps(error)
        pickle.loads(message)
        return message
    except Exception:
        return None


def _leave_with_parent(commands: int) -> None:
    """End this process soon after its parent is gone, even if an environment never comes back."""
    poller = select.poll()
    poller.register(commands, 0)
    poller.poll()
    time.sleep(GRACE_SECONDS)
    os._exit(1)


def _exactly(file: int, length: int) -> bytes | None:
    message = b""
    while len(message) < length:
        more = os.read(file, length - len(message))
        if not more:
            return None
        message += more
    return message
