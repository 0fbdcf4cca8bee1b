"""Limits: of an episode's steps, and of a reward's size.

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
from weft.envs.wrappers.wrapped import Layer, over
from weft.errors import WeftError


def time_limit(env: Env, steps: int) -> Env:
    """Episodes of at most `steps` steps: they are truncated then, and start anew."""
    if steps < 1:
        raise WeftError(f"time_limit: {steps} steps, but an episode needs at least one")
    return over(env, TimeLimit(steps))


def clip_reward(env: Env) -> Env:
    """Rewards between -1 and 1, so that one game's are like another's (Mnih et al. 2015)."""
    return over(env, ClipReward())


@dataclass(frozen=True)
class TimeLimit(Layer):
    """The memory is how many steps of its episode every environment has taken."""

    steps: int

    def start(self, obs: Any, trained: Any | None) -> tuple[jax.Array, Any]:
        del trained
        return jnp.zeros(len(jax.tree.leaves(obs)[0]), jnp.int32), obs

    def last(self, memory: jax.Array, last: jax.Array | None) -> jax.Array:
        mine = memory >= self.steps - 1
        return mine if last is None else mine | last

    def after(self, memory: jax.Array, timestep: TimeStep) -> tuple[jax.Array, TimeStep]:
        ended = timestep.terminated | timestep.truncated
        return jnp.where(ended, 0, memory + timestep.valid.astype(jnp.int32)), timestep


@dataclass(frozen=True)
class ClipReward(Layer):
    """Remembers nothing."""

    def after(self, memory: Any, timestep: TimeStep) -> tuple[Any, TimeStep]:
        return memory, replace(timestep, reward=jnp.clip(timestep.reward, -1.0, 1.0))
