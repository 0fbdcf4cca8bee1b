"""Wrappers that limit the length of episodes and the size of rewards.

>>> import jax, jax.numpy as jnp
>>> from weft.envs import make
>>> env = time_limit(make("gymnax:Pendulum-v1", 2), 3)
>>> state, _ = env.reset(jax.random.key(0))
>>> for key in jax.random.split(jax.random.key(1), 3):
...     state, timestep = env.step(state, jnp.zeros((2, 1)), key)
>>> timestep.truncated.tolist(), timestep.terminated.tolist()
([True, True], [False, False])
"""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from weft.envs.timestep import Env, TimeStep
from weft.envs.wrappers.wrapper import WrappedEnv, Wrapper
from weft.errors import WeftError


def time_limit(env: Env, steps: int) -> Env:
    """Truncates episodes after `steps` steps."""
    if steps < 1:
        raise WeftError(f"time_limit: {steps} steps, but an episode needs at least one")
    return WrappedEnv(env, TimeLimit(steps))


def clip_reward(env: Env) -> Env:
    """Clips rewards to [-1, 1], so that different games have rewards of the same scale (Mnih et al. 2015)."""
    return WrappedEnv(env, ClipReward())


@dataclass(frozen=True)
class TimeLimit(Wrapper):
    """The state is the number of steps in the current episode of every environment."""

    steps: int

    def init(self, obs: Any, trained: Any | None) -> tuple[jax.Array, Any]:
        del trained
        return jnp.zeros(len(jax.tree.leaves(obs)[0]), jnp.int32), obs

    def last(self, state: jax.Array, last: jax.Array | None) -> jax.Array:
        at_limit = state >= self.steps - 1
        return at_limit if last is None else at_limit | last

    def transform(self, state: jax.Array, timestep: TimeStep) -> tuple[jax.Array, TimeStep]:
        ended = timestep.terminated | timestep.truncated
        return jnp.where(ended, 0, state + timestep.valid.astype(jnp.int32)), timestep


@dataclass(frozen=True)
class ClipReward(Wrapper):
    """Has no state."""

    def transform(self, state: Any, timestep: TimeStep) -> tuple[Any, TimeStep]:
        return state, replace(timestep, reward=jnp.clip(timestep.reward, -1.0, 1.0))
