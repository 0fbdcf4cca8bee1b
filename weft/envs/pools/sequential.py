"""Gymnasium environments stepped one after another in one process: the loop that every pool of weft's own runs.

Worker processes import this module without the rest of weft and JAX (see `worker_main`), hence the relative imports.
The caller provides the arrays that observations are written to, so the same loop serves private and shared memory.

An environment is user code. Every error of one environment is attributed to its row: `RowFailure` has the row, its
seed, its step and the reason. With `restart`, only that environment is made anew.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from .arrays import ActionSplitter, ObservationWriter, has_nan

MAX_CONSECUTIVE_RESTARTS = 3


class RowFailure(Exception):
    """An environment that failed. The cause is the exception that it raised, if it raised one."""

    def __init__(self, row: int, seed: int, steps: int, episode_steps: int, reason: str) -> None:
        super().__init__(reason)
        self.row, self.seed, self.steps, self.episode_steps, self.reason = row, seed, steps, episode_steps, reason


class EpisodeEnd(NamedTuple):
    """The end of a row's episode in a step. `final` holds the last observation, one array per spec."""

    row: int
    terminated: bool
    truncated: bool
    final: list[np.ndarray]
    failure: RowFailure | None = None
    """The failure for which the episode was dropped, if it was."""


class SequentialEnvs:
    """Environments with one seed each. The trajectory of a row depends only on its seed and its actions."""

    def __init__(
        self,
        make: Callable[[], gym.Env],
        seeds: Sequence[int],
        *,
        writer: ObservationWriter,
        actions: ActionSplitter,
        restart: bool = False,
        restarts: Sequence[int] | None = None,
        steps: int = 0,
    ) -> None:
        self.restarts = list(restarts) if restarts is not None else [0] * len(seeds)
        """Number of restarts of each environment: it determines the seed of the current one."""
        self.current_row: Any = [0]
        """The index of the row that is being stepped, in its only element; other threads and processes may read it."""
        self._make, self._seeds, self._writer, self._actions = make, list(seeds), writer, actions
        self._restart = restart
        self._envs: list[gym.Env | None] = [None] * len(seeds)
        self._step_functions: list[Callable[[Any], Any]] = [_not_running] * len(seeds)
        self._steps_at_reset = [steps] * len(seeds)
        self._consecutive_restarts: dict[int, int] = {}
        self._steps = steps
        self._previous_obs: list[np.ndarray] = []

    def reset(self, out: list[np.ndarray]) -> None:
        """Makes and resets every environment. Writes the first observations to `out`, one array [B, ...] per spec."""
        for row in range(len(self._seeds)):
            self.current_row[0] = row
            self._start(row, out)
        self._previous_obs = out

    def step(self, action: list[np.ndarray], last: np.ndarray | None, out: list[np.ndarray]) -> Any:
        """Steps every environment once. Returns the rewards, float64 [B], and a list of `EpisodeEnd`.

        Observations go to `out`. These must not be the arrays of the previous step: the last observation of an
        environment that fails is read from there.
        """
        self._steps += 1
        actions = self._actions.split(action)
        lasts = last.tolist() if last is not None and last.any() else None
        rewards: list[Any] = []
        ends: list[EpisodeEnd] = []
        while len(rewards) < len(self._step_functions):
            try:
                self._step_rows(actions, lasts, out, rewards, ends)
            except RowFailure:
                raise
            except (Exception, SystemExit) as error:
                row = len(rewards)
                ends.append(self._drop_episode(row, _describe(error), error, out))
                rewards.append(0.0)
        reward = self._checked(rewards, ends, out, action)
        if self._consecutive_restarts:
            self._forget_restarts(ends)
        self._previous_obs = out
        return reward, ends

    def close(self) -> None:
        """Closes every environment. Errors of an environment while it closes are ignored."""
        for row in range(len(self._envs)):
            self._discard(row)

    def failure_of_current_row(self, reason: str) -> RowFailure:
        """Returns the failure of the environment that is being stepped."""
        return self._failure(self.current_row[0], reason)

    def render(self) -> np.ndarray | None:
        """Returns an image of the first environment, or None if it does not render images."""
        env = self._envs[0]
        return None if env is None or env.render_mode != "rgb_array" else np.asarray(env.render(), np.uint8)

    def _step_rows(self, actions: list, lasts: list | None, out: list, rewards: list, ends: list) -> None:
        """The hot loop: steps the rows that have no reward yet."""
        current_row, array, shape, write = self.current_row, out[0], self._writer.single_shape, self._writer.write
        first, ndarray = len(rewards), np.ndarray
        for row, step in enumerate(self._step_functions[first:] if first else self._step_functions, first):
            current_row[0] = row
            obs, reward, terminated, truncated, info = step(actions[row])
            if obs.__class__ is ndarray and obs.shape == shape:
                array[row] = obs
            else:
                write(out, row, obs, info)
            if terminated or truncated or (lasts is not None and lasts[row]):
                ends.append(self._end_episode(row, reward, bool(terminated), out))
            rewards.append(reward)

    def _end_episode(self, row: int, reward: Any, terminated: bool, out: list[np.ndarray]) -> EpisodeEnd:
        final = [array[row].copy() for array in out]
        if any(map(has_nan, final)) or reward != reward:
            raise ValueError("NaN in the observation or the reward")
        self._steps_at_reset[row] = self._steps
        env = self._envs[row]
        assert env is not None
        try:
            obs, info = env.reset()
            self._writer.write_first(out, row, obs, info)
        except (Exception, SystemExit) as error:
            # The episode that ended is complete. Only the next one needs a new environment.
            self._give_up(row, _describe(error), error)
            self._start(row, out)
        return EpisodeEnd(row, terminated, not terminated, final)

    def _checked(
        self, rewards: list, ends: list[EpisodeEnd], out: list[np.ndarray], action: list[np.ndarray]
    ) -> np.ndarray:
        """Returns the rewards as an array. Drops the episodes of rows with NaN or a reward that is not a number."""
        try:
            total, reward = sum(rewards), np.array(rewards, np.float64)
            is_valid = total == total and reward.ndim == 1
        except (TypeError, ValueError):
            is_valid, reward = False, np.zeros(0)
        for array in out:
            is_valid = is_valid and not has_nan(array)
        return reward if is_valid else self._drop_invalid_rows(rewards, ends, out, action)

    def _drop_invalid_rows(
        self, rewards: list, ends: list[EpisodeEnd], out: list[np.ndarray], action: list[np.ndarray]
    ) -> np.ndarray:
        for row, reward in enumerate(rewards):
            reason = _reward_error(reward) or _observation_error(out, row, action)
            if reason:
                ends[:] = [end for end in ends if end.row != row]
                ends.append(self._drop_episode(row, reason, None, out))
                rewards[row] = 0.0
        return np.array(rewards, np.float64)

    def _drop_episode(self, row: int, reason: str, error: BaseException | None, out: list[np.ndarray]) -> EpisodeEnd:
        """Drops the row's episode and restarts its environment."""
        failure = self._give_up(row, reason, error)
        final = [array[row].copy() for array in self._previous_obs]
        self._start(row, out)
        return EpisodeEnd(row, False, True, final, failure)

    def _start(self, row: int, out: list[np.ndarray]) -> None:
        """Makes and resets one environment, and tries again if it fails and may be restarted."""
        while True:
            try:
                return self._start_once(row, out)
            except (Exception, SystemExit) as error:
                self._give_up(row, _describe(error), error)

    def _start_once(self, row: int, out: list[np.ndarray]) -> None:
        self._steps_at_reset[row] = self._steps
        env = self._envs[row] = self._make()
        self._step_functions[row] = env.step
        obs, info = env.reset(seed=seed_after_restarts(self._seeds[row], self.restarts[row]))
        self._writer.write_first(out, row, obs, info)
        if any(has_nan(array[row]) for array in out):
            raise ValueError("NaN in the first observation")

    def _give_up(self, row: int, reason: str, error: BaseException | None) -> RowFailure:
        """Discards a row's environment and returns its failure. Raises the failure if the row may not be restarted."""
        failure = self._failure(row, reason)
        if not self._restart or self._consecutive_restarts.get(row, 0) >= MAX_CONSECUTIVE_RESTARTS:
            raise failure from error
        self._discard(row)
        self.restarts[row] += 1
        self._consecutive_restarts[row] = self._consecutive_restarts.get(row, 0) + 1
        return failure

    def _failure(self, row: int, reason: str) -> RowFailure:
        seed = seed_after_restarts(self._seeds[row], self.restarts[row])
        return RowFailure(row, seed, self._steps, self._steps - self._steps_at_reset[row], reason)

    def _forget_restarts(self, ends: list[EpisodeEnd]) -> None:
        """Resets the count of consecutive restarts of every row that did not fail in this step."""
        failed = {end.row for end in ends if end.failure}
        self._consecutive_restarts = {row: n for row, n in self._consecutive_restarts.items() if row in failed}

    def _discard(self, row: int) -> None:
        env, self._envs[row], self._step_functions[row] = self._envs[row], None, _not_running
        try:
            if env is not None:
                env.close()
        except Exception:
            return


def seed_after_restarts(seed: int, restarts: int) -> int:
    """Returns the seed of an environment after a number of restarts: the original one, or one derived from both.

    >>> seed_after_restarts(7, 0), seed_after_restarts(7, 1) == seed_after_restarts(7, 1) != seed_after_restarts(7, 2)
    (7, True)
    """
    if not restarts:
        return seed
    return int(np.random.SeedSequence((seed, restarts)).generate_state(1)[0] >> 1)


def _reward_error(reward: Any) -> str | None:
    try:
        # NumPy would convert None to NaN.
        number = np.asarray("none" if reward is None else reward, np.float64)
    except (TypeError, ValueError):
        return f"the reward is {reward!r}, not a number"
    if number.shape != ():
        return f"the reward has the shape {number.shape}, not ()"
    return "the reward is NaN" if has_nan(number) else None


def _observation_error(out: list[np.ndarray], row: int, action: list[np.ndarray]) -> str | None:
    if not any(has_nan(array[row]) for array in out):
        return None
    in_action = " (and in its action)" if any(has_nan(array[row]) for array in action) else ""
    return f"NaN in the observation{in_action}"


def _describe(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _not_running(action: Any) -> Any:
    raise RuntimeError("the environment is not running")
