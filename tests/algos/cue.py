"""An environment that needs a memory: the cue of the first step is the rewarded action of the last step."""

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

from weft import Mean, TimeStep, fragment
from weft.envs.episodes import EpisodeStatistics


@dataclass(frozen=True)
class Cue:
    """Shows left or right in the first of `steps` steps and 0 afterwards; the last action has to repeat it.

    The cues are a fixed pseudorandom sequence, so no keys are used.
    """

    num_envs: int
    steps: int = 5
    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, key: jax.Array) -> tuple[Any, jax.Array]:
        del key
        time, seed = jnp.zeros(self.num_envs, jnp.int32), jnp.arange(self.num_envs, dtype=jnp.uint32)
        state = {"time": time, "seed": _next(seed), "episodes": EpisodeStatistics.start(self.num_envs)}
        return state, self.show(state)

    def show(self, state: Any) -> jax.Array:
        cue = jnp.where(state["time"] == 0, _cue(state["seed"]) * 2.0 - 1.0, 0.0)
        last = (state["time"] == self.steps - 1).astype(jnp.float32)
        return jnp.stack([cue, last], axis=-1)

    @fragment(name="env")
    def step(
        self, state: Any, action: jax.Array, key: jax.Array, last: jax.Array | None = None
    ) -> tuple[Any, TimeStep]:
        del key, last
        time, no = state["time"] + 1, jnp.zeros(self.num_envs, bool)
        ended = time == self.steps
        reward = jnp.where(ended, jnp.where(action == _cue(state["seed"]), 1.0, -1.0), 0.0)
        final_obs = self.show(state | {"time": time})
        state = {
            "time": jnp.where(ended, 0, time),
            "seed": jnp.where(ended, _next(state["seed"]), state["seed"]),
            "episodes": state["episodes"].record(reward, ended=ended, valid=~no),
        }
        return state, TimeStep(self.show(state), reward, ended, no, final_obs, ~no)

    @fragment(name="env.episodes")
    def episodes(self, state: Any) -> tuple[Any, dict[str, Mean]]:
        episodes, metrics = state["episodes"].pop_metrics()
        return state | {"episodes": episodes}, metrics


def _next(seed: jax.Array) -> jax.Array:
    return seed * jnp.uint32(1664525) + jnp.uint32(1013904223)


def _cue(seed: jax.Array) -> jax.Array:
    return (seed >> 16 & 1).astype(jnp.int32)
