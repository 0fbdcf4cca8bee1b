"""A pool over environments that somebody else steps together: Gymnasium's vector environments, or EnvPool's.

They restart episodes in one of three ways, and all of them end up as the same time steps here. In the *same step*: the
last observation is in `info`. In the *next step*, whose action is not used and whose row belongs to no episode: it is
not valid. Or not at all: whoever steps them does it, as this pool then does at once.
"""

import traceback
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import gymnasium as gym
import numpy as np

from weft.envs.pools.arrays import has_nan, mask_of
from weft.envs.pools.episode_statistics import Tally
from weft.envs.pools.failures import EnvFailed, failed
from weft.envs.pools.in_process_pool import frozen
from weft.envs.pools.nested import fields, flatten, unflatten
from weft.envs.pools.pool import Stepped, Totals
from weft.errors import WeftError


class Engine(Protocol):
    """What steps environments together."""

    autoreset: str
    """When an episode that ended is followed by the next: `same_step`, `next_step` or `disabled`."""

    def reset(self, seeds: Sequence[int]) -> tuple[Any, dict[str, Any]]:
        """Start every environment."""
        ...

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step every environment once, as Gymnasium's vector environments do."""
        ...

    def restart(self, rows: np.ndarray) -> tuple[Any, dict[str, Any]]:
        """Reset the chosen rows, bool [B]: the observations of these rows alone."""
        ...

    def close(self) -> None: ...


Learned = Callable[[np.ndarray, np.ndarray, dict[str, Any]], tuple[np.ndarray, np.ndarray | None]]
"""From a step's rewards, which rows ended and `info`: the rewards to learn from, and rows to treat as terminated."""


class VectorPool:
    """Environments stepped by an engine."""

    def __init__(
        self,
        name: str,
        engine: Engine,
        *,
        kind: str,
        observation_space: gym.Space,
        action_space: gym.Space,
        indices: Sequence[int],
        seeds: Sequence[int],
        masked: bool = False,
        learned: Learned | None = None,
    ) -> None:
        self.kind = kind
        self._name, self._engine, self._learned = name, engine, learned
        self._indices, self._seeds = list(indices), list(seeds)
        self._spaces, self._fields = (observation_space, action_space), fields(observation_space, masked=masked)
        self._tally, self._steps = Tally(len(seeds)), 0
        self._none = frozen(np.zeros(len(seeds), bool))
        self._over = self._none
        """Rows that the engine will restart in the next step."""

    def reset(self) -> Any:
        obs, info = self._call(lambda: self._engine.reset(self._seeds))
        leaves = self._leaves(obs, info, len(self._seeds))
        self._check(leaves, np.zeros(0))
        return unflatten(self._spaces[0], leaves)

    def step(self, action: Any, last: np.ndarray | None) -> Stepped:
        self._steps += 1
        given = batched(self._spaces[1], action)
        obs, reward, terminated, truncated, info = self._call(lambda: self._engine.step(given))
        leaves, inserted = self._leaves(obs, info, len(self._seeds)), self._over
        reward = np.where(inserted, 0.0, np.asarray(reward, np.float64))
        terminated = np.asarray(terminated, bool) & ~inserted
        truncated = np.asarray(truncated, bool) & ~terminated & ~inserted
        self._check(leaves, reward)
        ended = terminated | truncated
        cut = self._none if last is None else last & ~ended & ~inserted
        final = self._follow(leaves, ended, cut, info)
        self._count(reward, ended | cut, inserted)
        if self._learned:
            reward, lost = self._learned(reward, ended, info)
            terminated = terminated if lost is None else terminated | (lost & ~inserted)
        obs = unflatten(self._spaces[0], leaves)
        final_obs = obs if final is leaves else unflatten(self._spaces[0], final)
        truncated = (truncated | cut) & ~terminated
        return Stepped(obs, reward.astype(np.float32), terminated, truncated, final_obs, ~inserted)

    def episodes(self) -> Totals:
        return self._tally.take()

    def close(self) -> None:
        self._engine.close()

    def _follow(self, leaves: list, ended: np.ndarray, cut: np.ndarray, info: dict[str, Any]) -> list[np.ndarray]:
        """Let the next episodes begin in `leaves`, where the engine has them not begun: the last observations."""
        mode = self._engine.autoreset
        self._over = ended if mode == "next_step" else self._none
        again = cut | ended if mode == "disabled" else cut
        shown = ended & (mode == "same_step")
        if not again.any() and not shown.any():
            return leaves
        final = [leaf.copy() for leaf in leaves]
        if shown.any():
            self._write_final(final, shown, info)
        if again.any():
            obs, info = self._call(lambda: self._engine.restart(again))
            for leaf, fresh in zip(leaves, self._leaves(obs, info, int(again.sum()), again), strict=True):
                leaf[again] = fresh
            self._check(leaves, np.zeros(0))
        return final

    def _write_final(self, final: list[np.ndarray], rows: np.ndarray, info: dict[str, Any]) -> None:
        last_obs, last_info = info["final_obs"], info.get("final_info", {})
        for row in np.flatnonzero(rows).tolist():
            mask = {"action_mask": last_info["action_mask"][row]} if self._fields.masked else {}
            self._call(lambda row=row, mask=mask: self._fields.write(final, row, last_obs[row], mask))
        self._check(final, np.zeros(0))

    def _count(self, reward: np.ndarray, ended: np.ndarray, inserted: np.ndarray) -> None:
        self._tally.add(reward)
        for row in np.flatnonzero(inserted).tolist():
            self._tally.begin(row)
        for row in np.flatnonzero(ended).tolist():
            self._tally.finish(row)

    def _leaves(self, obs: Any, info: dict, rows: int, chosen: np.ndarray | None = None) -> list[np.ndarray]:
        """The observations of so many rows, in arrays of our own; `info` is of all rows, and `chosen` says which."""
        if self._fields.masked:
            masks = info["action_mask"] if chosen is None else info["action_mask"][chosen]
            obs = {"observation": obs, "action_mask": np.stack([mask_of({"action_mask": mask}) for mask in masks])}
        leaves = flatten(self._spaces[0], obs)
        arrays = [np.array(leaf, field.dtype) for leaf, field in zip(leaves, self._fields.fields, strict=True)]
        for array, field in zip(arrays, self._fields.fields, strict=True):
            if array.shape != (rows, *field.shape):
                raise self._all_failed(f"observations have the shape {array.shape}, not {(rows, *field.shape)}")
        return arrays

    def _check(self, leaves: list[np.ndarray], reward: np.ndarray) -> None:
        if has_nan(reward) or any(map(has_nan, leaves)):
            for row, index in enumerate(self._indices):
                if any(has_nan(leaf[row]) for leaf in leaves):
                    raise self._row_failed(row, index, "NaN in the observation")
                if has_nan(reward[row : row + 1]):
                    raise self._row_failed(row, index, "the reward is NaN")

    def _call(self, function: Callable[[], Any]) -> Any:
        try:
            return function()
        except WeftError:
            raise
        except Exception as error:
            reason, row = f"{type(error).__name__}: {error}", _culprit(error)
            if row is None:
                raise self._all_failed(reason) from error
            raise self._row_failed(row, self._indices[row], reason) from error

    def _row_failed(self, row: int, index: int, reason: str) -> EnvFailed:
        steps = {"steps": self._steps, "episode_steps": self._tally.length(row) + 1}
        return failed(self._name, index, seed=self._seeds[row], reason=reason, **steps)

    def _all_failed(self, reason: str) -> EnvFailed:
        if len(self._indices) == 1:
            return self._row_failed(0, self._indices[0], reason)
        which = f"environments {self._indices[0]} to {self._indices[-1]}"
        return EnvFailed(f"{self._name}: one of {which} failed at step {self._steps}: {' '.join(reason.split())}")


def batched(space: gym.Space, action: Any) -> Any:
    """A batch of actions, counted from 0, as a vector environment of that space wants it."""
    if isinstance(space, gym.spaces.Dict):
        return {name: batched(part, action[name]) for name, part in space.spaces.items()}
    if isinstance(space, gym.spaces.Tuple):
        return tuple(batched(part, given) for part, given in zip(space.spaces, action, strict=True))
    if isinstance(space, gym.spaces.Box):
        return np.clip(np.asarray(action).astype(space.dtype, copy=False), space.low, space.high)
    return np.asarray(action).astype(space.dtype) + np.asarray(getattr(space, "start", 0), space.dtype)


def _culprit(error: Exception) -> int | None:
    """The row that Gymnasium's own vector environments were at when an exception came out of them."""
    found = None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_filename.endswith(("sync_vector_env.py", "async_vector_env.py")):
            for name in ("index", "env_idx", "i"):
                found = frame.f_locals.get(name, found)
                if name in frame.f_locals:
                    break
    return found
