"""CartPole without velocities in the observations: a policy needs memory to balance the pole."""

from typing import Any

import gymnasium as gym
import numpy as np


class HiddenVelocities(gym.ObservationWrapper):
    """CartPole whose observations have only the position of the cart and the angle of the pole."""

    def __init__(self) -> None:
        super().__init__(gym.make("CartPole-v1", disable_env_checker=True))
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def observation(self, observation: Any) -> Any:
        return observation[[0, 2]]
