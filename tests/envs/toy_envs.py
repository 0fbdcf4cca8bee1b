"""Small Gymnasium environments for tests of the pools, each with one special behaviour or one fault.

All of them count their steps. A reset draws a random number, `secret`. The observation is the secret and the step, so
it identifies the episode and the seed. `info["total"]` is the return of the episode so far. The action adds to the
reward, so returns depend on the actions.
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
    """Terminates after `length` steps."""

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
    """Terminates and is never truncated."""


class Truncating(Counting):
    """Is truncated and never terminates."""

    def ends(self) -> tuple[bool, bool]:
        return False, self.time >= self.length


class Both(Counting):
    """Terminates and is truncated in the same step."""

    def ends(self) -> tuple[bool, bool]:
        return (self.time >= self.length,) * 2


class OneStep(Counting):
    """Terminates in every step."""

    def ends(self) -> tuple[bool, bool]:
        return True, False


class Never(Counting):
    """Never ends an episode."""

    def ends(self) -> tuple[bool, bool]:
        return False, False


class Uneven(Counting):
    """Has episodes of different lengths."""

    def ends(self) -> tuple[bool, bool]:
        return self.time > self.secret % 4, self.time > self.secret % 7


class ReadOnly(Counting):
    """Returns read-only observations."""

    def observe(self) -> Any:
        obs = super().observe()
        obs.flags.writeable = False
        return obs


class Reusing(Counting):
    """Returns the same array in every step and overwrites it."""

    shown = np.zeros(2, np.float32)

    def __init__(self) -> None:
        super().__init__()
        self.shown = np.zeros(2, np.float32)

    def observe(self) -> Any:
        self.shown[:] = self.secret, self.time
        return self.shown


class Wide(Counting):
    """Returns float64 observations and NumPy rewards."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float64)

    def observe(self) -> Any:
        return np.array([self.secret, self.time], np.float64)

    def reward(self, action: Any) -> Any:
        return np.float64(super().reward(action))


class ChangingInfo(Counting):
    """Returns different keys in `info` in every step."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict]:
        *stepped, info = super().step(action)
        return *stepped, info | {f"key {self.time}": self.time, "odd" if self.time % 2 else "even": [self.time]}


class Nested(Counting):
    """Has nested observations and actions."""

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
    """Has discrete actions that start at 5."""

    action_space = gym.spaces.Discrete(3, start=5)

    def reward(self, action: Any) -> float:
        assert self.action_space.contains(action), action
        return float(action)


class Bounded(Counting):
    """Asserts that actions are within its bounds, of which some are infinite."""

    action_space = gym.spaces.Box(np.array([-1, -np.inf]), np.array([0.5, np.inf]), dtype=np.float64)

    def reward(self, action: Any) -> float:
        assert self.action_space.contains(action), action
        return float(action.sum())


class Masking(Counting):
    """Returns an action mask in `info`."""

    def mask(self) -> Any:
        return np.array([1, self.time % 2, self.secret % 2], np.int8)

    def reset(self, **kwargs: Any) -> tuple[Any, dict]:
        obs, info = super().reset(**kwargs)
        return obs, info | {"action_mask": self.mask()}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict]:
        *stepped, info = super().step(action)
        return *stepped, info | {"action_mask": self.mask()}


class MaskingMany(Masking):
    """Returns a mask for each component of a MultiDiscrete action."""

    action_space = gym.spaces.MultiDiscrete([2, 3])

    def mask(self) -> Any:
        return np.array([1, self.time % 2], np.int8), np.array([1, 0, self.secret % 2], np.int8)


class Slow(Counting):
    """Sleeps a millisecond in every step."""

    def reward(self, action: Any) -> float:
        time.sleep(0.001)
        return super().reward(action)


class Modules(Never):
    """Observes whether its process has imported weft or JAX."""

    def observe(self) -> Any:
        return np.array([name in sys.modules for name in ("weft", "jax")], np.float32)


class Bad(Never):
    """Base class of environments that fail at one step of every episode, or only of episodes with an odd secret."""

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
    """Raises an exception."""


class Leaving(Bad):
    """Raises SystemExit."""

    def spoil(self, *stepped: Any) -> Any:
        raise SystemExit(3)


class NaNObservation(Bad):
    """Returns NaN in an observation."""

    def spoil(self, *stepped: Any) -> Any:
        return np.array([np.nan, 0], np.float32), *stepped[1:]


class NaNReward(Bad):
    """Returns a NaN reward."""

    def spoil(self, *stepped: Any) -> Any:
        return stepped[0], float("nan"), *stepped[2:]


class NaNAtTheEnd(Bad):
    """Returns a NaN reward in the last step of an episode."""

    def spoil(self, *stepped: Any) -> Any:
        return stepped[0], float("nan"), True, *stepped[3:]


class WrongShape(Bad):
    """Returns an observation of the wrong shape."""

    def spoil(self, *stepped: Any) -> Any:
        return np.zeros(1, np.float32), *stepped[1:]


class WrongStructure(Bad):
    """Returns a dictionary instead of an array."""

    def spoil(self, *stepped: Any) -> Any:
        return {"obs": stepped[0]}, *stepped[1:]


class TooFew(Bad):
    """Returns four values from `step`, like the old Gym interface."""

    def spoil(self, *stepped: Any) -> Any:
        return stepped[:4]


class NoReward(Bad):
    """Returns None as the reward."""

    def spoil(self, *stepped: Any) -> Any:
        return stepped[0], None, *stepped[2:]


class Hanging(Bad):
    """Hangs in `step`."""

    def spoil(self, *stepped: Any) -> Any:
        while True:
            time.sleep(0.01)


class Dying(Bad):
    """Kills its own process."""

    def spoil(self, *stepped: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)


class NotMade(Counting):
    """Cannot be made a second time in a process. The first one is made to inspect its spaces."""

    made = 0

    def __init__(self) -> None:
        super().__init__()
        NotMade.made += 1
        if NotMade.made > 1:
            raise RuntimeError("no licence left")


class BadReset(Counting):
    """Raises in its second reset."""

    resets = 0

    def reset(self, **kwargs: Any) -> tuple[Any, dict]:
        self.resets += 1
        if self.resets > 1:
            raise RuntimeError("stuck")
        return super().reset(**kwargs)


class FloatImage(Counting):
    """Declares uint8 observations and returns fractions, which a cast would turn to zero."""

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
    """Plays a script, a letter per step: `.` continues, `t` terminates, `c` truncates, `b` does both, `!` raises."""

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
