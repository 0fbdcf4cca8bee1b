"""A pool of Gymnasium environments in this process: no data exchange, so the least overhead for fast environments.

An environment that hangs cannot be interrupted here, so it ends the run; `overdue` names it. A pool of worker processes
can kill and restart it.
"""

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from weft.envs.pools.arrays import ActionSplitter, ObservationWriter
from weft.envs.pools.episode_statistics import PoolEpisodeStatistics
from weft.envs.pools.failures import env_failed
from weft.envs.pools.nested import array_specs, flatten, unflatten
from weft.envs.pools.pool import EpisodeTotals, PoolStep, frozen
from weft.envs.pools.sequential import EpisodeEnd, RowFailure, SequentialEnvs

log = logging.getLogger(__name__)


class InProcessPool:
    """Environments stepped one after another."""

    kind = "inprocess"

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
        timeout: float = 60.0,
    ) -> None:
        self._name, self._indices, self._timeout = name, list(indices), timeout
        self._step_started: float | None = None
        self._observation_space, self._action_space = observation_space, action_space
        self._writer = ObservationWriter(array_specs(observation_space), masked=masked)
        actions = ActionSplitter(action_space)
        self._envs = SequentialEnvs(make, seeds, writer=self._writer, actions=actions, restart=restart)
        self._statistics = PoolEpisodeStatistics(len(seeds))
        self._all_false, self._all_true = frozen(np.zeros(len(seeds), bool)), frozen(np.ones(len(seeds), bool))

    def reset(self) -> Any:
        out = self._writer.allocate(len(self._indices))
        try:
            self._envs.reset(out)
        except RowFailure as failure:
            raise self._error(failure) from failure.__cause__
        return unflatten(self._observation_space, out)

    def step(self, action: Any, last: np.ndarray | None) -> PoolStep:
        out = self._writer.allocate(len(self._indices))
        self._step_started = time.monotonic()
        try:
            reward, ends = self._envs.step(flatten(self._action_space, action), last, out)
        except RowFailure as failure:
            raise self._error(failure) from failure.__cause__
        self._step_started = None
        self._statistics.add_step(reward)
        if ends:
            return self._step_with_ends(out, reward, ends)
        obs = unflatten(self._observation_space, out)
        return PoolStep(obs, reward.astype(np.float32), self._all_false, self._all_false, obs, self._all_true)

    def pop_totals(self) -> EpisodeTotals:
        return self._statistics.pop_totals()

    def close(self) -> None:
        self._envs.close()

    def overdue(self) -> Exception | None:
        """Returns the error for the environment being stepped if it exceeds the timeout. Called from another thread."""
        started = self._step_started
        if started is None or time.monotonic() - started < self._timeout:
            return None
        reason = f"no answer for {self._timeout:g} s; vector=workers can restart it"
        return self._error(self._envs.failure_of_current_row(reason))

    def render(self) -> np.ndarray | None:
        """Returns an image of the first environment, or None if it does not render images."""
        return self._envs.render()

    def _step_with_ends(self, out: list[np.ndarray], reward: np.ndarray, ends: list[EpisodeEnd]) -> PoolStep:
        final = [array.copy() for array in out]
        terminated, truncated, valid = self._all_false.copy(), self._all_false.copy(), self._all_true.copy()
        for end in ends:
            for array, row in zip(final, end.final, strict=True):
                array[end.row] = row
            terminated[end.row], truncated[end.row], valid[end.row] = end.terminated, end.truncated, not end.failure
            if end.failure:
                self._statistics.drop_episode(end.row)
                log.warning("%s; it was started again", self._error(end.failure))
            else:
                self._statistics.finish_episode(end.row)
        obs, final_obs = unflatten(self._observation_space, out), unflatten(self._observation_space, final)
        return PoolStep(obs, reward.astype(np.float32), terminated, truncated, final_obs, valid)

    def _error(self, failure: RowFailure) -> Exception:
        return env_failed(
            self._name,
            self._indices[failure.row],
            seed=failure.seed,
            reason=failure.reason,
            steps=failure.steps,
            episode_steps=failure.episode_steps,
        )
