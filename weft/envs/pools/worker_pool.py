"""A pool of Gymnasium environments in worker processes: slow environments run in parallel.

Every worker has a contiguous block of rows. Actions, observations and all other arrays lie in shared memory. One byte
through a pipe starts a step and another byte reports its end, which costs about ten microseconds per worker. A worker
that crashes or hangs loses only the episodes of its own block.

The trajectories are the same as in one process: a row depends only on its seed and its actions.
"""

import logging
import pickle
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle
import gymnasium as gym
import numpy as np

from weft.envs.pools.arrays import ArraySpec
from weft.envs.pools.episode_statistics import PoolEpisodeStatistics
from weft.envs.pools.failures import EnvFailed, env_failed
from weft.envs.pools.nested import array_specs, flatten, unflatten
from weft.envs.pools.pool import EpisodeTotals, PoolStep, frozen
from weft.envs.pools.sequential import MAX_CONSECUTIVE_RESTARTS, seed_after_restarts
from weft.envs.pools.shared_arrays import SharedArrays
from weft.envs.pools.worker_main import DONE, DROPPED, FAILED, RESET, RESTARTED, TERMINATED, TRUNCATED, WITH_LAST
from weft.envs.pools.worker_process import WorkerLost, WorkerProcess
from weft.errors import WeftError

log = logging.getLogger(__name__)


class WorkerPool:
    """Environments stepped by several processes in parallel."""

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
        self._observation_space, self._action_space = observation_space, action_space
        self._restart, self._timeout = restart, timeout
        observation_specs = array_specs(observation_space)
        self._shared = SharedArrays(_shared_specs(observation_specs, array_specs(action_space), num_envs, count))
        bounds = np.linspace(0, num_envs, count + 1).astype(int).tolist()
        self._blocks = [slice(*pair) for pair in zip(bounds[:-1], bounds[1:], strict=True)]
        self._config = {
            "shared_specs": dict(self._shared.specs),
            "observation_specs": [(spec.path, spec.shape, spec.dtype) for spec in observation_specs],
            "masked": masked,
            "restart": restart,
            "factory": _pickled(make, name),
            "action_space": cloudpickle.dumps(action_space),
        }
        self._statistics, self._steps, self._parity = PoolEpisodeStatistics(num_envs), 0, 0
        self._consecutive_restarts = [0] * count
        self._all_false, self._all_true = frozen(np.zeros(num_envs, bool)), frozen(np.ones(num_envs, bool))
        self._processes: list[WorkerProcess] = []
        self._finalizer = weakref.finalize(self, _stop, self._processes, self._shared)

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers."""
        return [process.pid for process in self._processes]

    def reset(self) -> Any:
        try:
            for worker in range(len(self._blocks)):
                self._processes.append(self._spawn(worker))
            for worker in range(len(self._blocks)):
                self._start_or_respawn(worker)
        except BaseException:
            self.close()
            raise
        return self._observations()

    def step(self, action: Any, last: np.ndarray | None) -> PoolStep:
        if not self._finalizer.alive:
            raise WeftError(f"the environments of {self._name} are closed: they cannot be stepped any more")
        try:
            workers_with_ends = self._step_workers(flatten(self._action_space, action), last)
        except BaseException:
            self.close()
            raise
        obs, reward = self._observations(), self._shared["reward"][0].copy()
        self._statistics.add_step(reward)
        if workers_with_ends:
            return self._step_with_ends(obs, reward, workers_with_ends)
        return PoolStep(obs, reward.astype(np.float32), self._all_false, self._all_false, obs, self._all_true)

    def pop_totals(self) -> EpisodeTotals:
        return self._statistics.pop_totals()

    def close(self) -> None:
        self._finalizer()

    def _step_workers(self, action: list[np.ndarray], last: np.ndarray | None) -> list[int]:
        """Steps every block and returns the workers with an ended episode in their block."""
        for array, leaf in zip(self._shared["action"], action, strict=True):
            array[...] = leaf
        self._steps += 1
        self._parity ^= 1
        command = self._parity
        if last is not None and last.any():
            self._shared["last"][0][:] = last
            command |= WITH_LAST
        for process in self._processes:
            process.send(bytes((command,)))
        return [worker for worker in range(len(self._processes)) if self._wait_for_step(worker)]

    def _wait_for_step(self, worker: int) -> bool:
        """Waits until a worker has stepped its block. Returns whether an episode ended in it."""
        process = self._processes[worker]
        try:
            reply = process.wait_for_reply(self._timeout, self._progress(worker))
            message: Any = process.read_message() if reply in (FAILED, RESTARTED) else ()
        except WorkerLost as lost:
            self._restart_block(worker, str(lost))
            return True
        self._consecutive_restarts[worker] = 0
        if reply == FAILED:
            raise self._error(worker, message) from _cause(message)
        for failure in message:
            log.warning("%s; it was started again", self._error(worker, failure))
        return reply != DONE

    def _restart_block(self, worker: int, reason: str) -> None:
        """Replaces a lost worker. All episodes of its block are dropped."""
        rows = self._blocks[worker]
        final = [array[rows].copy() for array in self._obs_buffer(self._parity ^ 1)]
        self._respawn(worker, reason)
        self._shared["reward"][0][rows] = 0.0
        self._shared["flags"][0][rows] = TRUNCATED | DROPPED
        for array, last_obs in zip(self._shared["final"], final, strict=True):
            array[rows] = last_obs

    def _respawn(self, worker: int, reason: str) -> None:
        """Starts new processes for a block until one is ready. Raises if the block may not be restarted."""
        while True:
            error = self._error_of_current_row(worker, reason)
            if not self._restart or self._consecutive_restarts[worker] >= MAX_CONSECUTIVE_RESTARTS:
                raise error
            rows = self._blocks[worker]
            log.warning("%s; its worker and all %d of its environments were restarted", error, rows.stop - rows.start)
            self._consecutive_restarts[worker] += 1
            self._processes[worker].stop(grace=0.0)
            self._shared["restarts"][0][rows] += 1
            self._processes[worker] = self._spawn(worker)
            try:
                return self._start(worker)
            except WorkerLost as lost:
                reason = str(lost)

    def _start_or_respawn(self, worker: int) -> None:
        try:
            self._start(worker)
        except WorkerLost as lost:
            self._respawn(worker, str(lost))

    def _start(self, worker: int) -> None:
        """Waits for a new process and resets its environments."""
        process = self._processes[worker]
        process.wait_until_ready()
        process.send(bytes((RESET | self._parity,)))
        if process.wait_for_reply(self._timeout, self._progress(worker)) == FAILED:
            message = process.read_message()
            raise self._error(worker, message) from _cause(message)

    def _spawn(self, worker: int) -> WorkerProcess:
        rows = self._blocks[worker]
        own = {
            "worker": worker,
            "first_row": rows.start,
            "seeds": self._seeds[rows],
            "restarts": self._shared["restarts"][0][rows].tolist(),
            "steps": self._steps,
        }
        return WorkerProcess(self._config | own, self._shared.file)

    def _observations(self) -> Any:
        return unflatten(self._observation_space, [array.copy() for array in self._obs_buffer(self._parity)])

    def _obs_buffer(self, parity: int) -> list[np.ndarray]:
        """The observations of even or odd steps. They alternate, so that those of the previous step stay readable."""
        return self._shared["next_obs" if parity else "obs"]

    def _step_with_ends(self, obs: Any, reward: np.ndarray, workers: list[int]) -> PoolStep:
        flags = np.zeros(len(self._seeds), np.uint8)
        for worker in workers:
            flags[self._blocks[worker]] = self._shared["flags"][0][self._blocks[worker]]
        final = [array.copy() for array in self._obs_buffer(self._parity)]
        for row in np.flatnonzero(flags).tolist():
            for array, last_obs in zip(final, self._shared["final"], strict=True):
                array[row] = last_obs[row]
            if flags[row] & DROPPED:
                self._statistics.drop_episode(row)
            else:
                self._statistics.finish_episode(row)
        terminated, truncated, dropped = ((flags & bit).astype(bool) for bit in (TERMINATED, TRUNCATED, DROPPED))
        final_obs = unflatten(self._observation_space, final)
        return PoolStep(obs, reward.astype(np.float32), terminated, truncated, final_obs, ~dropped)

    def _progress(self, worker: int) -> Callable[[], int]:
        return lambda: int(self._shared["current_row"][worker][0])

    def _error(self, worker: int, message: dict[str, Any]) -> EnvFailed:
        details = {name: message[name] for name in ("seed", "steps", "episode_steps", "reason")}
        return env_failed(self._name, self._indices[self._blocks[worker].start + message["row"]], **details)

    def _error_of_current_row(self, worker: int, reason: str) -> EnvFailed:
        """Returns the error for the environment that a worker was stepping when it was lost."""
        row = self._blocks[worker].start + int(self._shared["current_row"][worker][0])
        seed = seed_after_restarts(self._seeds[row], int(self._shared["restarts"][0][row]))
        steps = {"steps": self._steps, "episode_steps": self._statistics.episode_length(row) + 1}
        return env_failed(self._name, self._indices[row], seed=seed, reason=reason, **steps)


def _shared_specs(
    observation: Sequence[ArraySpec], action: Sequence[ArraySpec], num_envs: int, workers: int
) -> dict[str, list[Any]]:
    obs = [((num_envs, *spec.shape), spec.dtype) for spec in observation]
    return {
        "action": [((num_envs, *spec.shape), spec.dtype) for spec in action],
        "obs": obs,
        "next_obs": obs,
        "final": obs,
        "reward": [((num_envs,), "<f8")],
        "flags": [((num_envs,), "|u1")],
        "last": [((num_envs,), "|b1")],
        "restarts": [((num_envs,), "<i8")],
        "current_row": [((1,), "<i8")] * workers,
    }


def _pickled(make: Callable[[], gym.Env], name: str) -> bytes:
    try:
        return cloudpickle.dumps(make)
    except Exception as error:
        raise WeftError(
            f"{name} cannot be sent to worker processes: {type(error).__name__}: {error}; use vector=inprocess"
        ) from error


def _cause(message: dict[str, Any]) -> BaseException | None:
    try:
        return pickle.loads(message["cause"]) if message["cause"] else None
    except Exception:
        return None


def _stop(processes: list[WorkerProcess], shared: SharedArrays) -> None:
    for process in processes:
        process.ask_to_exit()
    for process in processes:
        process.stop()
    processes.clear()
    shared.close()
