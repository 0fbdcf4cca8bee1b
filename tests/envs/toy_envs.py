"""Environments made to try the pools: each well or ill behaved in one way.

All of them count. The good ones draw a secret number when they are reset and show it with the step they are at, so that
an observation tells which episode of which seed it belongs to; `info` says what the episode has returned so far. An
action adds to the reward, so that a return depends on what was played.
"""

import os
import signal
import sys
import time
from typing import Any

import gymnasium as gym
import numpy as np

LENGTH = 5


class Counting(gym.Env):
    """Ends by itself after `length` steps."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gym.spaces.Discrete(3)

    def __init__(self, length: int = LENGTH) -> None:
        self.length = length

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.secret = int(self.np_random.integers(1, 1000))
        self.time, self.total = 0, 0.0
        return self.observe(), {"total": 0.0}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict]:
        self.time += 1
        reward = self.reward(action)
        self.total += reward
        terminated, truncated = self.ends()
        return self.observe(), reward, terminated, truncated, {"total": self.total}

    def observe(self) -> Any:
        return np.array([self.secret, self.time], np.float32)

    def reward(self, action: Any) -> float:
        return 1.0 + 0.1 * float(np.sum(action))

    def ends(self) -> tuple[bool, bool]:
        return self.time >= self.length, False


class Terminating(Counting):
    """Only ever terminates."""


class Truncating(Counting):
    """Only ever is cut off."""

    def ends(self) -> tuple[bool, bool]:
        return False, self.time >= self.length


class Both(Counting):
    """Terminates and is cut off in the same step."""

    def ends(self) -> tuple[bool, bool]:
        return (self.time >= self.length,) * 2


class OneStep(Counting):
    """Every step ends an episode."""

    def ends(self) -> tuple[bool, bool]:
        return True, False


class Never(Counting):
    """Goes on for ever."""

    def ends(self) -> tuple[bool, bool]:
        return False, False


class Uneven(Counting):
    """Ends after a number of steps that differs from episode to episode."""

    def ends(self) -> tuple[bool, bool]:
        return self.time > self.secret % 4, self.time > self.secret % 7


class ReadOnly(Counting):
    """Its observations cannot be written to."""

    def observe(self) -> Any:
        obs = super().observe()
        obs.flags.writeable = False
        return obs


class Reusing(Counting):
    """Gives the same array every time, and writes over it."""

    shown = np.zeros(2, np.float32)

    def __init__(self) -> None:
        super().__init__()
        self.shown = np.zeros(2, np.float32)

    def observe(self) -> Any:
        self.shown[:] = self.secret, self.time
        return self.shown


class Wide(Counting):
    """Observes float64, and rewards with NumPy's own numbers."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float64)

    def observe(self) -> Any:
        return np.array([self.secret, self.time], np.float64)

    def reward(self, action: Any) -> Any:
        return np.float64(super().reward(action))


class ChangingInfo(Counting):
    """Says something else in `info` every time."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict]:
        *stepped, info = super().step(action)
        return *stepped, info | {f"key {self.time}": self.time, "odd" if self.time % 2 else "even": [self.time]}


class Nested(Counting):
    """Observations and actions of several parts."""

    observation_space = gym.spaces.Dict(
        {
            "place": gym.spaces.Tuple((gym.spaces.Box(0, 1000, (2,), np.float32), gym.spaces.Discrete(1000, start=1))),
            "pixels": gym.spaces.Box(0, 255, (2, 2), np.uint8),
        }
    )
    action_space = gym.spaces.Dict(
        {
            "move": gym.spaces.Box(-1.0, 1.0, (2,), np.float32),
            "tools": gym.spaces.Tuple((gym.spaces.Discrete(4, start=2), gym.spaces.MultiDiscrete([2, 3]))),
        }
    )

    def observe(self) -> Any:
        return {
            "pixels": np.full((2, 2), self.time, np.uint8),
            "place": (np.array([self.secret, self.time], np.float32), self.secret),
        }

    def reward(self, action: Any) -> float:
        assert set(action) == {"move", "tools"} and self.action_space.contains(action), action
        tool, switches = action["tools"]
        return float(action["move"].sum()) + 10.0 * tool + float(switches.sum())


class Offset(Counting):
    """Counts its actions from 5."""

    action_space = gym.spaces.Discrete(3, start=5)

    def reward(self, action: Any) -> float:
        assert self.action_space.contains(action), action
        return float(action)


class Bounded(Counting):
    """Insists on actions within its bounds, some of which there are none of."""

    action_space = gym.spaces.Box(np.array([-1, -np.inf]), np.array([0.5, np.inf]), dtype=np.float64)

    def reward(self, action: Any) -> float:
        assert self.action_space.contains(action), action
        return float(action.sum())


class Masking(Counting):
    """Allows some of its actions only, and says which in `info`."""

    def mask(self) -> Any:
        return np.array([1, self.time % 2, self.secret % 2], np.int8)

    def reset(self, **kwargs: Any) -> tuple[Any, dict]:
        obs, info = super().reset(**kwargs)
        return obs, info | {"action_mask": self.mask()}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict]:
        *stepped, info = super().step(action)
        return *stepped, info | {"action_mask": self.mask()}


class MaskingMany(Masking):
    """Masks each of several choices."""

    action_space = gym.spaces.MultiDiscrete([2, 3])

    def mask(self) -> Any:
        return np.array([1, self.time % 2], np.int8), np.array([1, 0, self.secret % 2], np.int8)


class Slow(Counting):
    """Takes a millisecond for a step."""

    def reward(self, action: Any) -> float:
        time.sleep(0.001)
        return super().reward(action)


class Modules(Never):
    """Observes whether its process has loaded weft or JAX."""

    def observe(self) -> Any:
        return np.array([name in sys.modules for name in ("weft", "jax")], np.float32)


class Bad(Never):
    """Goes wrong at one step of every environment that starts with a certain secret; others are well."""

    def __init__(self, at: int = 3, odd_only: bool = False) -> None:
        super().__init__()
        self.at, self.odd_only = at, odd_only

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict]:
        stepped = super().step(action)
        if self.time == self.at and (self.secret % 2 or not self.odd_only):
            return self.spoil(*stepped)
        return stepped

    def spoil(self, *stepped: Any) -> Any:
        raise ValueError("out of paint")


class Raising(Bad):
    """Raises."""


class Leaving(Bad):
    """Tries to end the program."""

    def spoil(self, *stepped: Any) -> Any:
        raise SystemExit(3)


class NaNObservation(Bad):
    """Observes NaN."""

    def spoil(self, *stepped: Any) -> Any:
        return np.array([np.nan, 0], np.float32), *stepped[1:]


class NaNReward(Bad):
    """Rewards with NaN."""

    def spoil(self, *stepped: Any) -> Any:
        return stepped[0], float("nan"), *stepped[2:]


class NaNAtTheEnd(Bad):
    """Ends with a NaN."""

    def spoil(self, *stepped: Any) -> Any:
        return stepped[0], float("nan"), True, *stepped[3:]


class WrongShape(Bad):
    """Observes too little."""

    def spoil(self, *stepped: Any) -> Any:
        return np.zeros(1, np.float32), *stepped[1:]


class WrongStructure(Bad):
    """Observes a dictionary where an array was announced."""

    def spoil(self, *stepped: Any) -> Any:
        return {"obs": stepped[0]}, *stepped[1:]


class TooFew(Bad):
    """Steps like the old Gym."""

    def spoil(self, *stepped: Any) -> Any:
        return stepped[:4]


class NoReward(Bad):
    """Rewards with nothing."""

    def spoil(self, *stepped: Any) -> Any:
        return stepped[0], None, *stepped[2:]


class Hanging(Bad):
    """Never comes back."""

    def spoil(self, *stepped: Any) -> Any:
        while True:
            time.sleep(0.01)


class Dying(Bad):
    """Kills its own process."""

    def spoil(self, *stepped: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)


class NotMade(Counting):
    """Cannot be made for a second time in a process: the first is the one that is tried."""

    made = 0

    def __init__(self) -> None:
        super().__init__()
        NotMade.made += 1
        if NotMade.made > 1:
            raise RuntimeError("no licence left")


class BadReset(Counting):
    """Cannot be reset for a second time."""

    resets = 0

    def reset(self, **kwargs: Any) -> tuple[Any, dict]:
        self.resets += 1
        if self.resets > 1:
            raise RuntimeError("stuck")
        return super().reset(**kwargs)


class FloatImage(Counting):
    """Announces bytes and observes fractions, which would all become zero."""

    observation_space = gym.spaces.Box(0, 255, (2,), np.uint8)

    def observe(self) -> Any:
        return np.array([0.25, 0.5], np.float32)


GOOD = (
    Terminating,
    Truncating,
    Both,
    OneStep,
    Never,
    Uneven,
    ReadOnly,
    Reusing,
    Wide,
    ChangingInfo,
    Nested,
    Offset,
    Bounded,
    Masking,
    MaskingMany,
)


class ScriptedGymEnv(gym.Env):
    """Does what a script says, step by step and over all episodes: goes on, terminates, is cut off, both, or raises."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gym.spaces.Discrete(5)

    def __init__(self, scripts: tuple[str, ...]) -> None:
        self.scripts = scripts

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        if seed is not None:
            self.script, self.time, self.episode = self.scripts[seed % len(self.scripts)], 0, -1
        self.episode += 1
        return np.array([self.episode, self.time], np.float32), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict]:
        now = self.script[self.time % len(self.script)]
        self.time += 1
        if now == "!":
            raise ValueError("as told")
        obs = np.array([self.episode, self.time], np.float32)
        return obs, float(action) + self.time, now in "tb", now in "cb", {}
