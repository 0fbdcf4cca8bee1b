"""A block of Gymnasium environments, stepped one after another: the loop under the pools of this package.

`Block` knows nothing of weft but the modules beside it, and nothing of JAX: a worker process loads it without the
package around it (see `worker`), hence the relative imports. It writes observations into arrays that it is given and
says which rows ended, so that the same loop serves arrays of this process and arrays shared between processes.

An environment may be anybody's code. Whatever it does wrong is pinned on it: `Broken` names the row, how far it was
and what was wrong, and a block that may restart makes only that environment anew.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from .arrays import Actions, Fields, has_nan

RESTARTS_IN_A_ROW = 3


class Broken(Exception):
    """An environment that did something wrong; the cause is the exception that it raised, if it raised one."""

    def __init__(self, row: int, seed: int, steps: int, episode_steps: int, reason: str) -> None:
        super().__init__(reason)
        self.row, self.seed, self.steps, self.episode_steps, self.reason = row, seed, steps, episode_steps, reason


class End(NamedTuple):
    """A row whose episode ended in a step; `final` is its last observation, one array for each field."""

    row: int
    terminated: bool
    truncated: bool
    final: list[np.ndarray]
    broken: Broken | None = None
    """Why the episode was given up, where it did not end by itself."""


class Block:
    """Environments with one seed each; an environment's stream depends on nothing but its seed and its actions."""

    def __init__(
        self,
        make: Callable[[], gym.Env],
        seeds: Sequence[int],
        *,
        fields: Fields,
        actions: Actions,
        restart: bool = False,
        restarts: Sequence[int] | None = None,
        steps: int = 0,
    ) -> None:
        self.restarts = list(restarts) if restarts is not None else [0] * len(seeds)
        """How often each environment was started again: it is part of its seed."""
        self.at: Any = [0]
        """The row that is being stepped, for whoever wonders why it takes so long."""
        self._make, self._seeds, self._fields, self._actions = make, list(seeds), fields, actions
        self._restart = restart
        self._envs: list[gym.Env | None] = [None] * len(seeds)
        self._step: list[Callable[[Any], Any]] = [_not_made] * len(seeds)
        self._since = [steps] * len(seeds)
        self._unproven: dict[int, int] = {}
        self._steps = steps
        self._last: list[np.ndarray] = []

    def reset(self, out: list[np.ndarray]) -> None:
        """Make and start every environment; the first observations go to `out`, one array [B, ...] for each field."""
        for row in range(len(self._seeds)):
            self.at[0] = row
            self._start(row, out)
        self._last = out

    def step(self, action: list[np.ndarray], last: np.ndarray | None, out: list[np.ndarray]) -> Any:
        """Step every environment once: the rewards, float64 [B], and the rows that ended.

        Observations go to `out`, which must not be the arrays of the step before: where an environment fails, its last
        good observation is still to be found there.
        """
        self._steps += 1
        actions = self._actions.split(action)
        lasts = last.tolist() if last is not None and last.any() else None
        rewards: list[Any] = []
        ends: list[End] = []
        while len(rewards) < len(self._step):
            try:
                self._run(actions, lasts, out, rewards, ends)
            except Broken:
                raise
            except (Exception, SystemExit) as error:
                row = len(rewards)
                ends.append(self._fail(row, _say(error), error, out))
                rewards.append(0.0)
        reward = self._checked(rewards, ends, out, action)
        if self._unproven:
            self._prove(ends)
        self._last = out
        return reward, ends

    def close(self) -> None:
        """Close what can be closed: an environment that cannot be is not worth another error."""
        for row in range(len(self._envs)):
            self._discard(row)

    def stuck(self, reason: str) -> Broken:
        """What to say of the environment that is being stepped."""
        row = self.at[0]
        seed = reseeded(self._seeds[row], self.restarts[row])
        return Broken(row, seed, self._steps, self._steps - self._since[row], reason)

    def picture(self) -> np.ndarray | None:
        """What the first environment shows, if it shows anything."""
        env = self._envs[0]
        return None if env is None or env.render_mode != "rgb_array" else np.asarray(env.render(), np.uint8)

    def _run(self, actions: list, lasts: list | None, out: list, rewards: list, ends: list) -> None:
        """The hot loop, over the rows for which there are no rewards yet."""
        at, array, shape, write = self.at, out[0], self._fields.plain_shape, self._fields.write
        begin, ndarray = len(rewards), np.ndarray
        for row, step in enumerate(self._step[begin:] if begin else self._step, begin):
            at[0] = row
            obs, reward, terminated, truncated, info = step(actions[row])
            if obs.__class__ is ndarray and obs.shape == shape:
                array[row] = obs
            else:
                write(out, row, obs, info)
            if terminated or truncated or (lasts is not None and lasts[row]):
                ends.append(self._end(row, reward, bool(terminated), out))
            rewards.append(reward)

    def _end(self, row: int, reward: Any, terminated: bool, out: list[np.ndarray]) -> End:
        final = [array[row].copy() for array in out]
        if any(map(has_nan, final)) or reward != reward:
            raise ValueError("NaN in the observation or the reward")
        self._since[row] = self._steps
        env = self._envs[row]
        assert env is not None
        try:
            obs, info = env.reset()
            self._fields.write_first(out, row, obs, info)
        except (Exception, SystemExit) as error:
            # The episode that ended is whole all the same: only the next one needs another environment.
            self._give_up(row, _say(error), error)
            self._start(row, out)
        return End(row, terminated, not terminated, final)

    def _checked(self, rewards: list, ends: list[End], out: list[np.ndarray], action: list[np.ndarray]) -> np.ndarray:
        """The rewards as an array, with the rows that hold NaN or no number at all given up."""
        try:
            total, reward = sum(rewards), np.array(rewards, np.float64)
            good = total == total and reward.ndim == 1
        except (TypeError, ValueError):
            good, reward = False, np.zeros(0)
        for array in out:
            good = good and not has_nan(array)
        return reward if good else self._sifted(rewards, ends, out, action)

    def _sifted(self, rewards: list, ends: list[End], out: list[np.ndarray], action: list[np.ndarray]) -> np.ndarray:
        for row, given in enumerate(rewards):
            reason = _bad_reward(given) or _bad_row(out, row, action)
            if reason:
                ends[:] = [end for end in ends if end.row != row]
                ends.append(self._fail(row, reason, None, out))
                rewards[row] = 0.0
        return np.array(rewards, np.float64)

    def _fail(self, row: int, reason: str, error: BaseException | None, out: list[np.ndarray]) -> End:
        """Give the row's episode up and start its environment again."""
        broken = self._give_up(row, reason, error)
        final = [array[row].copy() for array in self._last]
        self._start(row, out)
        return End(row, False, True, final, broken)

    def _start(self, row: int, out: list[np.ndarray]) -> None:
        """Make and reset one environment, again and again where that is wanted."""
        while True:
            try:
                return self._start_once(row, out)
            except (Exception, SystemExit) as error:
                self._give_up(row, _say(error), error)

    def _start_once(self, row: int, out: list[np.ndarray]) -> None:
        self._since[row] = self._steps
        env = self._envs[row] = self._make()
        self._step[row] = env.step
        obs, info = env.reset(seed=reseeded(self._seeds[row], self.restarts[row]))
        self._fields.write_first(out, row, obs, info)
        if any(has_nan(array[row]) for array in out):
            raise ValueError("NaN in the first observation")

    def _give_up(self, row: int, reason: str, error: BaseException | None) -> Broken:
        """Discard a row's environment, or raise where it may not be started again (any more)."""
        seed = reseeded(self._seeds[row], self.restarts[row])
        broken = Broken(row, seed, self._steps, self._steps - self._since[row], reason)
        if not self._restart or self._unproven.get(row, 0) >= RESTARTS_IN_A_ROW:
            raise broken from error
        self._discard(row)
        self.restarts[row] += 1
        self._unproven[row] = self._unproven.get(row, 0) + 1
        return broken

    def _prove(self, ends: list[End]) -> None:
        """Forget the restarts of the rows that have stepped well since."""
        failed = {end.row for end in ends if end.broken}
        self._unproven = {row: count for row, count in self._unproven.items() if row in failed}

    def _discard(self, row: int) -> None:
        env, self._envs[row], self._step[row] = self._envs[row], None, _not_made
        try:
            if env is not None:
                env.close()
        except Exception:
            return


def reseeded(seed: int, restarts: int) -> int:
    """The seed of an environment that was started again so many times: its own, or one drawn from both.

    >>> reseeded(7, 0), reseeded(7, 1) == reseeded(7, 1) != reseeded(7, 2)
    (7, True)
    """
    if not restarts:
        return seed
    return int(np.random.SeedSequence((seed, restarts)).generate_state(1)[0] >> 1)


def _bad_reward(given: Any) -> str | None:
    try:
        # Where NumPy is told to make a number of None it makes NaN.
        number = np.asarray("none" if given is None else given, np.float64)
    except (TypeError, ValueError):
        return f"the reward is {given!r}, not a number"
    if number.shape != ():
        return f"the reward has the shape {number.shape}, not ()"
    return "the reward is NaN" if has_nan(number) else None


def _bad_row(out: list[np.ndarray], row: int, action: list[np.ndarray]) -> str | None:
    if not any(has_nan(array[row]) for array in out):
        return None
    also = " (and in its action)" if any(has_nan(array[row]) for array in action) else ""
    return f"NaN in the observation{also}"


def _say(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _not_made(action: Any) -> Any:
    raise RuntimeError("the environment is not running")
