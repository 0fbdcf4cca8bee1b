"""A pool of Gymnasium environments in worker processes: the environments of slow games run side by side.

Every worker has a contiguous block of the rows. Actions, observations and everything else lie in memory that all
processes see; one byte through a pipe starts a step and another says that it is done, which costs ten microseconds or
so for each worker. A worker that dies or hangs costs the episodes of its block, and nothing else.

Environments give the same streams here as in one process: a row depends on its seed and its actions only.
"""

import logging
import pickle
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle
import gymnasium as gym
import numpy as np

from weft.envs.pools.episode_statistics import Tally
from weft.envs.pools.failures import EnvFailed, failed
from weft.envs.pools.in_process_pool import frozen
from weft.envs.pools.nested import fields, flatten, unflatten
from weft.envs.pools.pool import Stepped, Totals
from weft.envs.pools.sequential import RESTARTS_IN_A_ROW, reseeded
from weft.envs.pools.shared_arrays import Shared
from weft.envs.pools.worker_main import BROKEN, DONE, LOST, RESET, RESTARTED, TERMINATED, TRUNCATED, WITH_LAST
from weft.envs.pools.worker_process import Gone, Process
from weft.errors import WeftError

log = logging.getLogger(__name__)


class Workers:
    """Environments stepped by several processes at once."""

    kind = "workers"

    def __init__(
        self,
        name: str,
        make: Callable[[], gym.Env],
        *,
        observation_space: gym.Space,
        action_space: gym.Space,
        indices: Sequence[int],
        seeds: Sequence[int],
        masked: bool = False,
        restart: bool = False,
        workers: int = 2,
        timeout: float = 60.0,
    ) -> None:
        num_envs = len(seeds)
        count = min(workers, num_envs)
        self._name, self._indices, self._seeds = name, list(indices), list(seeds)
        self._spaces, self._restart, self._timeout = (observation_space, action_space), restart, timeout
        observed, acted = fields(observation_space, masked=masked), fields(action_space)
        self._shared = Shared(_parts(observed, acted, num_envs, count))
        bounds = np.linspace(0, num_envs, count + 1).astype(int).tolist()
        self._blocks = [slice(*pair) for pair in zip(bounds[:-1], bounds[1:], strict=True)]
        self._config = {
            "parts": dict(self._shared.parts),
            "fields": [(field.path, field.shape, field.dtype) for field in observed.fields],
            "masked": masked,
            "restart": restart,
            "factory": _pickled(make, name),
            "action_space": cloudpickle.dumps(action_space),
        }
        self._tally, self._steps, self._parity = Tally(num_envs), 0, 0
        self._unproven = [0] * count
        self._none, self._all = frozen(np.zeros(num_envs, bool)), frozen(np.ones(num_envs, bool))
        self._processes: list[Process] = []
        self._finalizer = weakref.finalize(self, _end, self._processes, self._shared)

    @property
    def pids(self) -> list[int]:
        """The worker processes."""
        return [process.pid for process in self._processes]

    def reset(self) -> Any:
        try:
            for number in range(len(self._blocks)):
                self._processes.append(self._spawn(number))
            for number, process in enumerate(self._processes):
                self._reset_block(number, process)
        except BaseException:
            self.close()
            raise
        return self._observations()

    def step(self, action: Any, last: np.ndarray | None) -> Stepped:
        if not self._finalizer.alive:
            raise WeftError(f"the environments of {self._name} are closed: they cannot be stepped any more")
        try:
            ended = self._exchange(flatten(self._spaces[1], action), last)
        except BaseException:
            self.close()
            raise
        obs, reward = self._observations(), self._shared["reward"][0].copy()
        self._tally.add(reward)
        if ended:
            return self._ended(obs, reward, ended)
        return Stepped(obs, reward.astype(np.float32), self._none, self._none, obs, self._all)

    def episodes(self) -> Totals:
        return self._tally.take()

    def close(self) -> None:
        self._finalizer()

    def _exchange(self, action: list[np.ndarray], last: np.ndarray | None) -> list[int]:
        """Have every block stepped: the numbers of those in which an episode ended."""
        for array, given in zip(self._shared["action"], action, strict=True):
            array[...] = given
        self._steps += 1
        self._parity ^= 1
        command = self._parity
        if last is not None and last.any():
            self._shared["last"][0][:] = last
            command |= WITH_LAST
        for process in self._processes:
            process.ask(bytes((command,)))
        return [number for number in range(len(self._processes)) if self._stepped(number)]

    def _stepped(self, number: int) -> bool:
        """Wait for one block; whether an episode ended in it."""
        process = self._processes[number]
        try:
            reply = process.answer(self._timeout, self._progress(number))
            told: Any = process.message() if reply in (BROKEN, RESTARTED) else ()
        except Gone as gone:
            self._revive(number, str(gone))
            return True
        self._unproven[number] = 0
        if reply == BROKEN:
            raise self._failed(number, told) from _cause(told)
        for failure in told:
            log.warning("%s; it was started again", self._failed(number, failure))
        return reply != DONE

    def _revive(self, number: int, reason: str) -> None:
        """Start a block anew whose worker is gone; all its episodes are lost."""
        rows = self._blocks[number]
        final = [array[rows].copy() for array in self._buffers(self._parity ^ 1)]
        self._processes[number] = self._respawn(number, reason)
        self._shared["reward"][0][rows] = 0.0
        self._shared["flags"][0][rows] = TRUNCATED | LOST
        for array, given in zip(self._shared["final"], final, strict=True):
            array[rows] = given

    def _respawn(self, number: int, reason: str) -> Process:
        while True:
            error = self._blame(number, reason)
            if not self._restart or self._unproven[number] >= RESTARTS_IN_A_ROW:
                raise error
            log.warning("%s; it was started again, and with it all %d of its worker", error, self._size(number))
            self._unproven[number] += 1
            self._processes[number].end(grace=0.0)
            self._shared["restarts"][0][self._blocks[number]] += 1
            process = self._processes[number] = self._spawn(number)
            try:
                self._start(number, process)
                return process
            except Gone as gone:
                reason = str(gone)

    def _reset_block(self, number: int, process: Process) -> None:
        try:
            self._start(number, process)
        except Gone as gone:
            self._respawn(number, str(gone))

    def _start(self, number: int, process: Process) -> None:
        process.await_start()
        process.ask(bytes((RESET | self._parity,)))
        if process.answer(self._timeout, self._progress(number)) == BROKEN:
            told = process.message()
            raise self._failed(number, told) from _cause(told)

    def _spawn(self, number: int) -> Process:
        rows = self._blocks[number]
        own = {
            "number": number,
            "first": rows.start,
            "seeds": self._seeds[rows],
            "restarts": self._shared["restarts"][0][rows].tolist(),
            "steps": self._steps,
        }
        return Process(self._config | own, self._shared.file)

    def _observations(self) -> Any:
        return unflatten(self._spaces[0], [array.copy() for array in self._buffers(self._parity)])

    def _buffers(self, parity: int) -> list[np.ndarray]:
        return self._shared["next_obs" if parity else "obs"]

    def _ended(self, obs: Any, reward: np.ndarray, blocks: list[int]) -> Stepped:
        flags = np.zeros(len(self._seeds), np.uint8)
        for number in blocks:
            flags[self._blocks[number]] = self._shared["flags"][0][self._blocks[number]]
        final = [array.copy() for array in self._buffers(self._parity)]
        for row in np.flatnonzero(flags).tolist():
            for array, given in zip(final, self._shared["final"], strict=True):
                array[row] = given[row]
            (self._tally.drop if flags[row] & LOST else self._tally.finish)(row)
        terminated, truncated, lost = ((flags & bit).astype(bool) for bit in (TERMINATED, TRUNCATED, LOST))
        final_obs = unflatten(self._spaces[0], final)
        return Stepped(obs, reward.astype(np.float32), terminated, truncated, final_obs, ~lost)

    def _progress(self, number: int) -> Callable[[], int]:
        return lambda: int(self._shared["at"][number][0])

    def _size(self, number: int) -> int:
        return self._blocks[number].stop - self._blocks[number].start

    def _failed(self, number: int, told: dict[str, Any]) -> EnvFailed:
        known = {name: told[name] for name in ("seed", "steps", "episode_steps", "reason")}
        return failed(self._name, self._indices[self._blocks[number].start + told["row"]], **known)

    def _blame(self, number: int, reason: str) -> EnvFailed:
        """The error for the environment at which a worker was when it was lost."""
        row = self._blocks[number].start + int(self._shared["at"][number][0])
        seed = reseeded(self._seeds[row], int(self._shared["restarts"][0][row]))
        steps = {"steps": self._steps, "episode_steps": self._tally.length(row) + 1}
        return failed(self._name, self._indices[row], seed=seed, reason=reason, **steps)


def _parts(observed: Any, acted: Any, num_envs: int, workers: int) -> dict[str, list[Any]]:
    obs = [((num_envs, *field.shape), field.dtype) for field in observed.fields]
    return {
        "action": [((num_envs, *field.shape), field.dtype) for field in acted.fields],
        "obs": obs,
        "next_obs": obs,
        "final": obs,
        "reward": [((num_envs,), "<f8")],
        "flags": [((num_envs,), "|u1")],
        "last": [((num_envs,), "|b1")],
        "restarts": [((num_envs,), "<i8")],
        "at": [((1,), "<i8")] * workers,
    }


def _pickled(make: Callable[[], gym.Env], name: str) -> bytes:
    try:
        return cloudpickle.dumps(make)
    except Exception as error:
        raise WeftError(
            f"{name} cannot be sent to worker processes: {type(error).__name__}: {error}; use vector=inprocess"
        ) from error


def _cause(told: dict[str, Any]) -> BaseException | None:
    try:
        return pickle.loads(told["cause"]) if told["cause"] else None
    except Exception:
        return None


def _end(processes: list[Process], shared: Shared) -> None:
    for process in processes:
        process.leave()
    for process in processes:
        process.end()
    processes.clear()
    shared.close()
