"""Observations and rewards brought to a common scale by what was seen so far.

Networks learn best from numbers around zero and one. What the numbers of an environment are like shows only in running
it, so mean and variance are learned on the way (`weft.envs.wrappers.moments`): those of one iteration are used in the
next ones, and they are the same for all replicas.

>>> import jax
>>> from weft.envs import make
>>> env = normalise_reward(normalise_obs(make("gymnax:Pendulum-v1", 2)), gamma=0.9)
>>> state, obs = env.reset(jax.random.key(0))
>>> env.observation_space
Box(-inf, inf, (3,), float32)
"""

from dataclasses import dataclass, replace
from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

from weft.envs import spaces
from weft.envs.timestep import Env, TimeStep
from weft.envs.wrappers.moments import Moments
from weft.envs.wrappers.wrapped import Layer, map_boxes, over
from weft.errors import WeftError

CLIP = 10.0
"""No normalised number is larger: one that is so far out says nothing more, and would upset a network."""
EPSILON = 1e-8
"""Added to variances, so that what never changes becomes zero and not infinite."""


def normalise_obs(env: Env) -> Env:
    """Observations with their running mean taken off, in units of their running standard deviation, within 10 of zero.

    Every part of a nested observation that holds floating-point numbers; others stay as they are. Until the end of the
    first iteration the mean is that of the first observations and the deviation is taken to be one.
    """
    parts = jax.tree.leaves(spaces.shapes(env.observation_space, 1))
    if not any(_is_float(part) for part in parts):
        raise WeftError(
            f"normalise_obs: no part of {env.observation_space} holds floating-point numbers, so there is nothing to do"
        )
    return over(env, NormaliseObs())


def normalise_reward(env: Env, gamma: float = 0.99) -> Env:
    """Rewards in units of the running standard deviation of the return discounted by `gamma`, within 10 of zero.

    Episodes are still reported with the rewards that the environment gave.
    """
    if not 0.0 <= gamma <= 1.0:
        raise WeftError(f"normalise_reward: gamma is {gamma:g}, and must lie between 0 and 1")
    return over(env, NormaliseReward(gamma))


@dataclass(frozen=True)
class NormaliseObs(Layer):
    """The memory is the moments of the floating-point parts of observations, in the order of the tree's leaves."""

    def space(self, space: gym.Space) -> gym.Space:
        return map_boxes(_unbounded, space)

    def start(self, obs: Any, trained: Moments | None) -> tuple[Moments, Any]:
        values = _floats(obs)
        if trained is None:
            moments = Moments.start(values, mean=tuple(value.mean(axis=0) for value in values))
        else:
            moments = Moments.knowing(trained.known, values)
        return moments.add(values, where=jnp.ones(len(values[0]), bool)), _normalised(moments, obs)

    def after(self, memory: Moments, timestep: TimeStep) -> tuple[Moments, TimeStep]:
        gathered = memory.add(_floats(timestep.obs), where=timestep.valid)
        obs, final_obs = (_normalised(memory, each) for each in (timestep.obs, timestep.final_obs))
        return gathered, replace(timestep, obs=obs, final_obs=final_obs)

    def merge(self, memory: Moments) -> Moments:
        return memory.merge()


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Returns:
    """The discounted return of every environment so far in its episode, and the moments of these returns."""

    running: jax.Array
    moments: Moments


@dataclass(frozen=True)
class NormaliseReward(Layer):
    """The return up to now stands for the one to come: it is known, and spreads alike (Engstrom et al. 2020)."""

    gamma: float

    def start(self, obs: Any, trained: Returns | None) -> tuple[Returns, Any]:
        zeros = jnp.zeros(len(jax.tree.leaves(obs)[0]), jnp.float32)
        if trained is None:
            return Returns(zeros, Moments.start((zeros,), mean=(jnp.zeros((), jnp.float32),))), obs
        return Returns(zeros, Moments.knowing(trained.moments.known, (zeros,))), obs

    def after(self, memory: Returns, timestep: TimeStep) -> tuple[Returns, TimeStep]:
        valid, ended = timestep.valid, timestep.terminated | timestep.truncated
        running = jnp.where(valid, self.gamma * memory.running + timestep.reward, memory.running)
        moments = memory.moments.add((running,), where=valid)
        reward = timestep.reward * jax.lax.rsqrt(moments.known.variance[0] + EPSILON)
        after = Returns(jnp.where(ended, 0.0, running), moments)
        return after, replace(timestep, reward=jnp.clip(reward, -CLIP, CLIP))

    def merge(self, memory: Returns) -> Returns:
        return Returns(memory.running, memory.moments.merge())


def _floats(obs: Any) -> tuple[jax.Array, ...]:
    return tuple(leaf for leaf in jax.tree.leaves(obs) if _is_float(leaf))


def _normalised(moments: Moments, obs: Any) -> Any:
    known = iter(zip(moments.known.mean, moments.known.variance, strict=True))

    def scale(leaf: jax.Array) -> jax.Array:
        if not _is_float(leaf):
            return leaf
        mean, variance = next(known)
        return jnp.clip((leaf - mean) * jax.lax.rsqrt(variance + EPSILON), -CLIP, CLIP)

    return jax.tree.map(scale, obs)


def _is_float(array: Any) -> bool:
    return jnp.issubdtype(array.dtype, jnp.floating)


def _unbounded(box: gym.spaces.Box) -> gym.Space:
    if not np.issubdtype(box.dtype, np.floating):
        return box
    return gym.spaces.Box(-np.inf, np.inf, box.shape, np.float32)
