"""A deterministic environment: its results do not depend on how environments are divided over replicas."""

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

from weft import Mean, TimeStep, fragment
from weft.envs.episodes import EpisodeStatistics


@dataclass(frozen=True)
class Slope:
    """A ball on a slope, pushed left or right. Terminates when the ball leaves the slope; truncated after 20 steps."""

    num_envs: int
    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, key: jax.Array) -> tuple[Any, jax.Array]:
        ball = jnp.linspace(-0.5, 0.5, 2 * self.num_envs).reshape(self.num_envs, 2)
        return {
            "ball": ball,
            "time": jnp.zeros(self.num_envs),
            "episodes": EpisodeStatistics.start(self.num_envs),
        }, ball

    @fragment(name="env")
    def step(self, state: Any, action: jax.Array, key: jax.Array) -> tuple[Any, TimeStep]:
        position, speed = state["ball"][:, 0], state["ball"][:, 1]
        speed = speed + 0.05 * position + 0.1 * (action.astype(jnp.float32) - 0.5)
        ball, time = jnp.stack([position + speed, speed], axis=1), state["time"] + 1
        terminated = jnp.abs(ball[:, 0]) > 1
        truncated = (time >= 20) & ~terminated
        ended, valid = terminated | truncated, jnp.ones(self.num_envs, bool)
        reward = 1 - jnp.abs(position)
        obs = jnp.where(ended[:, None], 0.1, ball)
        episodes = state["episodes"].record(reward, ended=ended, valid=valid)
        next_state = {"ball": obs, "time": jnp.where(ended, 0.0, time), "episodes": episodes}
        return next_state, TimeStep(obs, reward, terminated, truncated, ball, valid)

    @fragment(name="env.episodes")
    def episodes(self, state: Any) -> tuple[Any, dict[str, Mean]]:
        episodes, metrics = state["episodes"].pop_metrics()
        return state | {"episodes": episodes}, metrics
