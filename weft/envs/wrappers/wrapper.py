"""The interface of wrappers: pure functions that change the steps of an environment, with a state of their own.

A `Wrapper` defines only the change. `WrappedEnv` is the resulting environment, and the only part that defines
fragments. Wrappers are written in JAX on the values of `TimeStep`, so one wrapper serves environments on a device and
on the host.

>>> import jax, jax.numpy as jnp
>>> from dataclasses import replace
>>> from weft.envs import make
>>> class DoubleReward(Wrapper):
...     def transform(self, state, timestep):
...         return state, replace(timestep, reward=2 * timestep.reward)
>>> env = WrappedEnv(make("gymnax:CartPole-v1", 3), DoubleReward())
>>> state, _ = env.reset(jax.random.key(0))
>>> env.step(state, jnp.zeros(3, int), jax.random.key(1))[1].reward.tolist()
[2.0, 2.0, 2.0]

Two kinds of values make up a wrapper's state. Learned statistics (a mean, a variance) have no batch axis, are equal on
all replicas, and change only in `merge`, once per iteration. All other values have the environments as their first
axis.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import jax

from weft.envs.timestep import Env, TimeStep
from weft.fragments import fragment
from weft.metrics import Mean


class Wrapper:
    """Base class of wrappers. Its methods change nothing. Subclasses are frozen dataclasses of their settings."""

    def observation_space(self, space: gym.Space) -> gym.Space:
        """Returns the space of the transformed observations."""
        return space

    def init(self, obs: Any, trained: Any | None) -> tuple[Any, Any]:
        """Returns the initial state and the transformed first observations.

        `trained`, if given, is an earlier state: the new state keeps its learned statistics.
        """
        del trained
        return (), obs

    def last(self, state: Any, last: jax.Array | None) -> jax.Array | None:
        """Returns the mask of episodes that the coming step must end, given the caller's mask."""
        del state
        return last

    def transform(self, state: Any, timestep: TimeStep) -> tuple[Any, TimeStep]:
        """Returns the next state and the transformed time step."""
        return state, timestep

    def transform_with_action(self, state: Any, action: Any, timestep: TimeStep) -> tuple[Any, TimeStep]:
        """Like `transform`, for a wrapper that uses the action of the step."""
        del action
        return self.transform(state, timestep)

    def merge(self, state: Any) -> Any:
        """Returns the state at the end of an iteration, with the data of all replicas merged into the statistics."""
        return state


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class WrappedState:
    """The state of the inner environment and the state of the wrapper."""

    inner: Any
    wrapper: Any


@dataclass(frozen=True)
class WrappedEnv:
    """An environment with a wrapper applied."""

    env: Env
    wrapper: Wrapper

    @property
    def num_envs(self) -> int:
        return self.env.num_envs

    @property
    def observation_space(self) -> gym.Space:
        return self.wrapper.observation_space(self.env.observation_space)

    @property
    def action_space(self) -> gym.Space:
        return self.env.action_space

    def reset(self, key: jax.Array) -> tuple[WrappedState, Any]:
        inner, obs = self.env.reset(key)
        state, obs = self.wrapper.init(obs, None)
        return WrappedState(inner, state), obs

    def reset_with_statistics(self, key: jax.Array, trained: WrappedState) -> tuple[WrappedState, Any]:
        inner, obs = reset_with_statistics(self.env, key, trained.inner)
        state, obs = self.wrapper.init(obs, trained.wrapper)
        return WrappedState(inner, state), obs

    @fragment(name="env")
    def step(
        self, state: WrappedState, action: Any, key: jax.Array, last: jax.Array | None = None
    ) -> tuple[WrappedState, TimeStep]:
        inner, timestep = self.env.step(state.inner, action, key, self.wrapper.last(state.wrapper, last))
        wrapper_state, timestep = self.wrapper.transform_with_action(state.wrapper, action, timestep)
        return WrappedState(inner, wrapper_state), timestep

    @fragment(name="env.episodes")
    def episodes(self, state: WrappedState) -> tuple[WrappedState, dict[str, Mean]]:
        inner, metrics = self.env.episodes(state.inner)
        return WrappedState(inner, self.wrapper.merge(state.wrapper)), metrics


def reset_with_statistics(env: Env, key: jax.Array, trained: Any) -> tuple[Any, Any]:
    """Resets every environment, but keeps the statistics that wrappers learned in the state `trained`.

    `trained` may have another number of environments. An evaluation uses this: its observations are scaled as in
    training from the first step, and the scale does not change, because only `episodes` changes it.
    """
    if isinstance(env, WrappedEnv):
        return env.reset_with_statistics(key, trained)
    return env.reset(key)


def unwrap(env: Env, state: Any) -> tuple[Env, Any]:
    """Returns the environment inside all wrappers, and its part of the state."""
    while isinstance(env, WrappedEnv):
        env, state = env.env, state.inner
    return env, state


def map_boxes(function: Callable[[gym.spaces.Box], gym.Space], space: gym.Space) -> gym.Space:
    """Returns the same nested space with `function` applied to every Box in it."""
    if isinstance(space, gym.spaces.Dict):
        return gym.spaces.Dict({name: map_boxes(function, part) for name, part in space.spaces.items()})
    if isinstance(space, gym.spaces.Tuple):
        return gym.spaces.Tuple([map_boxes(function, part) for part in space.spaces])
    return function(space) if isinstance(space, gym.spaces.Box) else space
