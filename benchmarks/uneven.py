"""Environments whose steps take unequal time, as those of simulators do: `uneven:Uneven`.

A step mostly takes a millisecond, and fifty one time in fifty; it sleeps, so that a core can attend to many of them.

>>> env = Uneven(mostly=0.0, sometimes=0.0)
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

MOSTLY = 0.001
SOMETIMES = 0.05
ONE_IN = 50


class Uneven(gym.Env):
    """Noise to look at and a reward for action 1; when a step is slow is drawn from the environment's own seed."""

    def __init__(self, mostly: float = MOSTLY, sometimes: float = SOMETIMES, one_in: int = ONE_IN) -> None:
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (4,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self.mostly, self.sometimes, self.one_in = mostly, sometimes, one_in
        self.random = random.Random(0)
        # Drawn once: the environment should cost nothing but its time.
        self.observations = list(np.random.default_rng(0).uniform(-1.0, 1.0, (200, 4)).astype(np.float32))
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        if seed is not None:
            self.random.seed(seed)
        self.steps = 0
        return self.observations[0], {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        time.sleep(self.sometimes if self.random.randrange(self.one_in) == 0 else self.mostly)
        self.steps += 1
        return self.observations[self.steps % 200], float(action), False, self.steps == 200, {}


def mean_seconds(steps: int) -> float:
    """What so many steps of one environment take on average."""
    return steps * (MOSTLY + (SOMETIMES - MOSTLY) / ONE_IN)


def longest_seconds(steps: int, envs: int) -> float:
    """What the slowest of some environments takes on average for so many steps each."""
    p = 1 / ONE_IN
    slow = [comb(steps, k) * p**k * (1 - p) ** (steps - k) for k in range(steps + 1)]
    # The mean of the largest of `envs` counts is the sum over k of the chance that it is above k.
    largest = sum(1 - min(1.0, sum(slow[: k + 1])) ** envs for k in range(steps))
    return steps * MOSTLY + largest * (SOMETIMES - MOSTLY)
