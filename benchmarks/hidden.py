"""CartPole without its velocities: what cannot be seen must be remembered."""

from typing import Any

import gymnasium as gym
import numpy as np


class HiddenVelocities(gym.ObservationWrapper):
    """Shows where cart and pole are, not how fast they move."""

    def __init__(self) -> None:
        super().__init__(gym.make("CartPole-v1", disable_env_checker=True))
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def observation(self, observation: Any) -> Any:
        return observation[[0, 2]]
