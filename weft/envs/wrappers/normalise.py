"""Normalisation of observations and rewards by their running mean and variance.

Networks learn best from inputs of about unit scale, and the scale of an environment is not known in advance. The
running moments (`weft.envs.wrappers.moments`) of the data of one iteration are used from the next iteration on. They
are equal on all replicas.

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
from weft.envs.wrappers.moments import Moments, RunningMoments
from weft.envs.wrappers.wrapper import WrappedEnv, Wrapper, map_boxes
from weft.errors import WeftError

CLIP = 10.0
"""The largest absolute value of normalised numbers. Larger outliers would destabilise the network."""
EPSILON = 1e-8
"""Added to variances, so that a constant entry becomes zero instead of infinite."""


def normalise_obs(env: Env) -> Env:
    """Subtracts the running mean of observations, divides by their running standard deviation, clips to [-10, 10].

    Only the floating-point parts of a nested observation change. Until the end of the first iteration, the mean is that
    of the first observations and the standard deviation is one.
    """
    parts = jax.tree.leaves(spaces.shapes(env.observation_space, 1))
    if not any(_is_float(part) for part in parts):
        raise WeftError(
            f"normalise_obs: no part of {env.observation_space} is floating-point, so there is nothing to normalise"
        )
    return WrappedEnv(env, NormaliseObs())


def normalise_reward(env: Env, gamma: float = 0.99) -> Env:
    """Divides rewards by the running standard deviation of the return discounted by `gamma`, clips to [-10, 10].

    Episode metrics still report the rewards of the environment.
    """
    if not 0.0 <= gamma <= 1.0:
        raise WeftError(f"normalise_reward: gamma is {gamma:g}, but must lie between 0 and 1")
    return WrappedEnv(env, NormaliseReward(gamma))


@dataclass(frozen=True)
class NormaliseObs(Wrapper):
    """The state is the running moments of the floating-point leaves of observations."""

    def observation_space(self, space: gym.Space) -> gym.Space:
        return map_boxes(_unbounded, space)

    def init(self, obs: Any, trained: RunningMoments | None) -> tuple[RunningMoments, Any]:
        values = _floats(obs)
        if trained is None:
            running = RunningMoments.init(values, mean=tuple(value.mean(axis=0) for value in values))
        else:
            running = RunningMoments.from_moments(trained.moments, values)
        return running.add(values, where=jnp.ones(len(values[0]), bool)), _normalise(running.moments, obs)

    def transform(self, state: RunningMoments, timestep: TimeStep) -> tuple[RunningMoments, TimeStep]:
        running = state.add(_floats(timestep.obs), where=timestep.valid)
        obs, final_obs = (_normalise(state.moments, each) for each in (timestep.obs, timestep.final_obs))
        return running, replace(timestep, obs=obs, final_obs=final_obs)

    def merge(self, state: RunningMoments) -> RunningMoments:
        return state.merge()


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DiscountedReturns:
    """The discounted return so far in the episode of every environment, and the running moments of these returns."""

    current: jax.Array
    running: RunningMoments


@dataclass(frozen=True)
class NormaliseReward(Wrapper):
    """Estimates the scale of returns from discounted sums of past rewards (Engstrom et al. 2020)."""

    gamma: float

    def init(self, obs: Any, trained: DiscountedReturns | None) -> tuple[DiscountedReturns, Any]:
        zeros = jnp.zeros(len(jax.tree.leaves(obs)[0]), jnp.float32)
        if trained is None:
            running = RunningMoments.init((zeros,), mean=(jnp.zeros((), jnp.float32),))
        else:
            running = RunningMoments.from_moments(trained.running.moments, (zeros,))
        return DiscountedReturns(zeros, running), obs

    def transform(self, state: DiscountedReturns, timestep: TimeStep) -> tuple[DiscountedReturns, TimeStep]:
        valid, ended = timestep.valid, timestep.terminated | timestep.truncated
        current = jnp.where(valid, self.gamma * state.current + timestep.reward, state.current)
        running = state.running.add((current,), where=valid)
        reward = timestep.reward * jax.lax.rsqrt(running.moments.variance[0] + EPSILON)
        returns = DiscountedReturns(jnp.where(ended, 0.0, current), running)
        return returns, replace(timestep, reward=jnp.clip(reward, -CLIP, CLIP))

    def merge(self, state: DiscountedReturns) -> DiscountedReturns:
        return DiscountedReturns(state.current, state.running.merge())


def _floats(obs: Any) -> tuple[jax.Array, ...]:
    return tuple(leaf for leaf in jax.tree.leaves(obs) if _is_float(leaf))


def _normalise(moments: Moments, obs: Any) -> Any:
    remaining = iter(zip(moments.mean, moments.variance, strict=True))

    def scale(leaf: jax.Array) -> jax.Array:
        if not _is_float(leaf):
            return leaf
        mean, variance = next(remaining)
        return jnp.clip((leaf - mean) * jax.lax.rsqrt(variance + EPSILON), -CLIP, CLIP)

    return jax.tree.map(scale, obs)


def _is_float(array: Any) -> bool:
    return jnp.issubdtype(array.dtype, jnp.floating)


def _unbounded(box: gym.spaces.Box) -> gym.Space:
    if not np.issubdtype(box.dtype, np.floating):
        return box
    return gym.spaces.Box(-np.inf, np.inf, box.shape, np.float32)
