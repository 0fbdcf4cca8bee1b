"""An environment with steps of uneven duration, like a simulator's: `uneven:Uneven`.

Most steps take a millisecond; one step in fifty takes fifty. Steps sleep, so that one core can step many environments.

>>> env = Uneven(fast=0.0, slow=0.0)
>>> obs, _ = env.reset(seed=0)
>>> env.step(0)[0].shape
(4,)
"""

import random
import time
from math import comb
from typing import Any

import gymnasium as gym
import numpy as np

FAST_SECONDS = 0.001
SLOW_SECONDS = 0.05
SLOW_ONE_IN = 50
"""The mean number of steps per slow step."""


class Uneven(gym.Env):
    """Returns random observations, and a reward for action 1. The seed decides which steps are slow."""

    def __init__(self, fast: float = FAST_SECONDS, slow: float = SLOW_SECONDS) -> None:
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (4,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self.fast, self.slow = fast, slow
        self.random = random.Random(0)
        # Drawn in advance, so that a step costs nothing except its sleep.
        self.observations = list(np.random.default_rng(0).uniform(-1.0, 1.0, (200, 4)).astype(np.float32))
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        if seed is not None:
            self.random.seed(seed)
        self.steps = 0
        return self.observations[0], {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        time.sleep(self.slow if self.random.randrange(SLOW_ONE_IN) == 0 else self.fast)
        self.steps += 1
        return self.observations[self.steps % 200], float(action), False, self.steps == 200, {}


def mean_seconds(steps: int) -> float:
    """Returns the expected duration of `steps` steps of one environment."""
    return steps * (FAST_SECONDS + (SLOW_SECONDS - FAST_SECONDS) / SLOW_ONE_IN)


def longest_seconds(steps: int, envs: int) -> float:
    """Returns the expected duration of `steps` steps of the slowest of `envs` environments."""
    p = 1 / SLOW_ONE_IN
    slow_steps = [comb(steps, k) * p**k * (1 - p) ** (steps - k) for k in range(steps + 1)]
    # The mean of the largest of `envs` counts is the sum over k of the probability that it is above k.
    largest = sum(1 - min(1.0, sum(slow_steps[: k + 1])) ** envs for k in range(steps))
    return steps * FAST_SECONDS + largest * (SLOW_SECONDS - FAST_SECONDS)
