"""A pool over a vector environment of another library: one of Gymnasium's, the Atari emulator's or EnvPool's.

Vector environments restart episodes in one of three modes, and this pool turns all of them into the same time steps.
With `same_step`, the last observation is in `info`. With `next_step`, the step after an end ignores its action and
belongs to no episode: it is not valid. With `disabled`, the caller restarts the rows: this pool does so at once.
"""

import traceback
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import gymnasium as gym
import numpy as np

from weft.envs.pools.arrays import ObservationWriter, action_mask, has_nan
from weft.envs.pools.episode_statistics import PoolEpisodeStatistics
from weft.envs.pools.failures import EnvFailed, env_failed
from weft.envs.pools.nested import array_specs, flatten, unflatten
from weft.envs.pools.pool import EpisodeTotals, PoolStep, frozen
from weft.errors import WeftError


class VectorEnv(Protocol):
    """Environments that are stepped together by another library."""

    autoreset: str
    """When the next episode starts after an end: `same_step`, `next_step` or `disabled`."""

    def reset(self, seeds: Sequence[int]) -> tuple[Any, dict[str, Any]]:
        """Starts every environment."""
        ...

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Steps every environment once, like a vector environment of Gymnasium."""
        ...

    def restart(self, rows: np.ndarray) -> tuple[Any, dict[str, Any]]:
        """Resets the rows where `rows`, bool [B], is true. Returns the observations of these rows only."""
        ...

    def close(self) -> None: ...


LearningSignal = Callable[[np.ndarray, np.ndarray, dict[str, Any]], tuple[np.ndarray, np.ndarray | None]]
"""Maps a step's rewards, ended rows and `info` to the rewards to learn from and the rows to treat as terminated."""


class VectorPool:
    """The environments of a `VectorEnv`."""

    def __init__(
        self,
        name: str,
        vector_env: VectorEnv,
        *,
        kind: str,
        observation_space: gym.Space,
        action_space: gym.Space,
        indices: Sequence[int],
        seeds: Sequence[int],
        masked: bool = False,
        learning_signal: LearningSignal | None = None,
    ) -> None:
        self.kind = kind
        self._name, self._vector_env, self._learning_signal = name, vector_env, learning_signal
        self._indices, self._seeds = list(indices), list(seeds)
        self._observation_space, self._action_space = observation_space, action_space
        self._writer = ObservationWriter(array_specs(observation_space), masked=masked)
        self._statistics, self._steps = PoolEpisodeStatistics(len(seeds)), 0
        self._all_false = frozen(np.zeros(len(seeds), bool))
        self._restarting = self._all_false
        """Rows that the vector environment restarts in the next step."""

    def reset(self) -> Any:
        obs, info = self._call(lambda: self._vector_env.reset(self._seeds))
        leaves = self._leaves(obs, info, len(self._seeds))
        self._check(leaves, np.zeros(0))
        return unflatten(self._observation_space, leaves)

    def step(self, action: Any, last: np.ndarray | None) -> PoolStep:
        self._steps += 1
        native_action = to_native_action(self._action_space, action)
        obs, reward, terminated, truncated, info = self._call(lambda: self._vector_env.step(native_action))
        leaves, inserted = self._leaves(obs, info, len(self._seeds)), self._restarting
        reward = np.where(inserted, 0.0, np.asarray(reward, np.float64))
        terminated = np.asarray(terminated, bool) & ~inserted
        truncated = np.asarray(truncated, bool) & ~terminated & ~inserted
        self._check(leaves, reward)
        ended = terminated | truncated
        cut = self._all_false if last is None else last & ~ended & ~inserted
        final = self._start_next_episodes(leaves, ended, cut, info)
        self._count(reward, ended | cut, inserted)
        if self._learning_signal:
            reward, life_lost = self._learning_signal(reward, ended, info)
            terminated = terminated if life_lost is None else terminated | (life_lost & ~inserted)
        obs = unflatten(self._observation_space, leaves)
        final_obs = obs if final is leaves else unflatten(self._observation_space, final)
        truncated = (truncated | cut) & ~terminated
        return PoolStep(obs, reward.astype(np.float32), terminated, truncated, final_obs, ~inserted)

    def pop_totals(self) -> EpisodeTotals:
        return self._statistics.pop_totals()

    def close(self) -> None:
        self._vector_env.close()

    def _start_next_episodes(
        self, leaves: list, ended: np.ndarray, cut: np.ndarray, info: dict[str, Any]
    ) -> list[np.ndarray]:
        """Restarts rows that the vector environment does not restart itself. Returns the final observations.

        The first observations of restarted rows are written to `leaves`.
        """
        mode = self._vector_env.autoreset
        self._restarting = ended if mode == "next_step" else self._all_false
        restart = cut | ended if mode == "disabled" else cut
        final_in_info = ended & (mode == "same_step")
        if not restart.any() and not final_in_info.any():
            return leaves
        final = [leaf.copy() for leaf in leaves]
        if final_in_info.any():
            self._write_final(final, final_in_info, info)
        if restart.any():
            obs, info = self._call(lambda: self._vector_env.restart(restart))
            for leaf, first in zip(leaves, self._leaves(obs, info, int(restart.sum()), restart), strict=True):
                leaf[restart] = first
            self._check(leaves, np.zeros(0))
        return final

    def _write_final(self, final: list[np.ndarray], rows: np.ndarray, info: dict[str, Any]) -> None:
        last_obs, last_info = info["final_obs"], info.get("final_info", {})
        for row in np.flatnonzero(rows).tolist():
            mask = {"action_mask": last_info["action_mask"][row]} if self._writer.masked else {}
            self._call(lambda row=row, mask=mask: self._writer.write(final, row, last_obs[row], mask))
        self._check(final, np.zeros(0))

    def _count(self, reward: np.ndarray, ended: np.ndarray, inserted: np.ndarray) -> None:
        self._statistics.add_step(reward)
        for row in np.flatnonzero(inserted).tolist():
            self._statistics.begin_episode(row)
        for row in np.flatnonzero(ended).tolist():
            self._statistics.finish_episode(row)

    def _leaves(self, obs: Any, info: dict, rows: int, selected: np.ndarray | None = None) -> list[np.ndarray]:
        """Copies the observations of `rows` rows into new arrays. `info` has all rows; `selected` marks these rows."""
        if self._writer.masked:
            masks = info["action_mask"] if selected is None else info["action_mask"][selected]
            obs = {"observation": obs, "action_mask": np.stack([action_mask({"action_mask": mask}) for mask in masks])}
        leaves = flatten(self._observation_space, obs)
        arrays = [np.array(leaf, spec.dtype) for leaf, spec in zip(leaves, self._writer.specs, strict=True)]
        for array, spec in zip(arrays, self._writer.specs, strict=True):
            if array.shape != (rows, *spec.shape):
                raise self._pool_error(f"observations have the shape {array.shape}, not {(rows, *spec.shape)}")
        return arrays

    def _check(self, leaves: list[np.ndarray], reward: np.ndarray) -> None:
        if has_nan(reward) or any(map(has_nan, leaves)):
            for row in range(len(self._indices)):
                if any(has_nan(leaf[row]) for leaf in leaves):
                    raise self._row_error(row, "NaN in the observation")
                if has_nan(reward[row : row + 1]):
                    raise self._row_error(row, "the reward is NaN")

    def _call(self, function: Callable[[], Any]) -> Any:
        try:
            return function()
        except WeftError:
            raise
        except Exception as error:
            reason, row = f"{type(error).__name__}: {error}", _failing_row(error)
            raise (self._pool_error(reason) if row is None else self._row_error(row, reason)) from error

    def _row_error(self, row: int, reason: str) -> EnvFailed:
        steps = {"steps": self._steps, "episode_steps": self._statistics.episode_length(row) + 1}
        return env_failed(self._name, self._indices[row], seed=self._seeds[row], reason=reason, **steps)

    def _pool_error(self, reason: str) -> EnvFailed:
        """Returns the error for a failure of an unknown row."""
        if len(self._indices) == 1:
            return self._row_error(0, reason)
        which = f"environments {self._indices[0]} to {self._indices[-1]}"
        return EnvFailed(f"{self._name}: one of {which} failed at step {self._steps}: {' '.join(reason.split())}")


def to_native_action(space: gym.Space, action: Any) -> Any:
    """Converts a batch of actions to the space's dtypes and offsets: discrete parts of the batch count from 0."""
    if isinstance(space, gym.spaces.Dict):
        return {name: to_native_action(part, action[name]) for name, part in space.spaces.items()}
    if isinstance(space, gym.spaces.Tuple):
        return tuple(to_native_action(part, value) for part, value in zip(space.spaces, action, strict=True))
    if isinstance(space, gym.spaces.Box):
        return np.clip(np.asarray(action).astype(space.dtype, copy=False), space.low, space.high)
    return np.asarray(action).astype(space.dtype) + np.asarray(getattr(space, "start", 0), space.dtype)


def _failing_row(error: Exception) -> int | None:
    """Returns the row that a Gymnasium vector environment was stepping when it raised, read from its stack frames."""
    row = None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_filename.endswith(("sync_vector_env.py", "async_vector_env.py")):
            for name in ("index", "env_idx", "i"):
                row = frame.f_locals.get(name, row)
                if name in frame.f_locals:
                    break
    return row
