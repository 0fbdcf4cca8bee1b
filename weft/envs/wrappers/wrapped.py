"""What a wrapper is: a layer of pure functions around an environment, with a memory of its own.

`Wrapped` is the environment that results, and all that knows of fragments; a `Layer` only says what changes. It is
written once, in JAX, over what every environment gives: so it is the same for environments on a device and on a host.

>>> import jax, jax.numpy as jnp
>>> from dataclasses import replace
>>> from weft.envs import make
>>> class Doubled(Layer):
...     def after(self, memory, timestep):
...         return memory, replace(timestep, reward=2 * timestep.reward)
>>> env = over(make("gymnax:CartPole-v1", 3), Doubled())
>>> state, _ = env.reset(jax.random.key(0))
>>> env.step(state, jnp.zeros(3, int), jax.random.key(1))[1].reward.tolist()
[2.0, 2.0, 2.0]

What a layer's memory knows about an environment (a mean, a variance) is the same on all replicas and has no batch axis;
it changes in `merge` alone, once in an iteration. Everything else in it leads with the environments, and is theirs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import jax

from weft.envs.timestep import Env, TimeStep
from weft.fragments import fragment
from weft.metrics import Mean


class Layer:
    """What a wrapper does; these defaults do nothing. Subclasses are frozen dataclasses: their settings are values."""

    def space(self, space: gym.Space) -> gym.Space:
        """The space of the observations that this layer gives."""
        return space

    def start(self, obs: Any, trained: Any | None) -> tuple[Any, Any]:
        """A memory and the first observations; `trained` is an earlier memory whose knowledge to keep."""
        del trained
        return (), obs

    def last(self, memory: Any, last: jax.Array | None) -> jax.Array | None:
        """Which episodes the coming step is to cut off, of those that it is told to."""
        del memory
        return last

    def after(self, memory: Any, timestep: TimeStep) -> tuple[Any, TimeStep]:
        """What is remembered of a step, and what it becomes."""
        return memory, timestep

    def acted(self, memory: Any, action: Any, timestep: TimeStep) -> tuple[Any, TimeStep]:
        """The same, for a layer that must know the action that led to the step."""
        del action
        return self.after(memory, timestep)

    def merge(self, memory: Any) -> Any:
        """The memory at the end of an iteration, with what all rows of all replicas saw made into knowledge."""
        return memory


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class WrappedState:
    """The state of the environment inside, and the layer's memory."""

    inner: Any
    memory: Any


@dataclass(frozen=True)
class Wrapped:
    """An environment with a layer around it."""

    env: Env
    layer: Layer

    @property
    def num_envs(self) -> int:
        return self.env.num_envs

    @property
    def observation_space(self) -> gym.Space:
        return self.layer.space(self.env.observation_space)

    @property
    def action_space(self) -> gym.Space:
        return self.env.action_space

    def reset(self, key: jax.Array) -> tuple[WrappedState, Any]:
        inner, obs = self.env.reset(key)
        memory, obs = self.layer.start(obs, None)
        return WrappedState(inner, memory), obs

    def restart(self, key: jax.Array, trained: WrappedState) -> tuple[WrappedState, Any]:
        inner, obs = restart(self.env, key, trained.inner)
        memory, obs = self.layer.start(obs, trained.memory)
        return WrappedState(inner, memory), obs

    @fragment(name="env")
    def step(
        self, state: WrappedState, action: Any, key: jax.Array, last: jax.Array | None = None
    ) -> tuple[WrappedState, TimeStep]:
        inner, timestep = self.env.step(state.inner, action, key, self.layer.last(state.memory, last))
        memory, timestep = self.layer.acted(state.memory, action, timestep)
        return WrappedState(inner, memory), timestep

    @fragment(name="env.episodes")
    def episodes(self, state: WrappedState) -> tuple[WrappedState, dict[str, Mean]]:
        inner, metrics = self.env.episodes(state.inner)
        return WrappedState(inner, self.layer.merge(state.memory)), metrics


def over(env: Env, layer: Layer) -> Env:
    """The environment with a layer around it."""
    return Wrapped(env, layer)


def restart(env: Env, key: jax.Array, trained: Any) -> tuple[Any, Any]:
    """Start every environment anew, as `env.reset` does, but keep what wrappers had come to know in `trained`.

    `trained` is a state of this environment at any number of environments. This is how to evaluate: the observations
    are then scaled as in training from the first one on, and the scale stays, because only `episodes` changes it.
    """
    if isinstance(env, Wrapped):
        return env.restart(key, trained)
    return env.reset(key)


def innermost(env: Env, state: Any) -> tuple[Env, Any]:
    """The environment inside all wrappers, and its own part of a state."""
    while isinstance(env, Wrapped):
        env, state = env.env, state.inner
    return env, state


def map_boxes(function: Callable[[gym.spaces.Box], gym.Space], space: gym.Space) -> gym.Space:
    """The same nested space with every Box in it replaced."""
    if isinstance(space, gym.spaces.Dict):
        return gym.spaces.Dict({name: map_boxes(function, part) for name, part in space.spaces.items()})
    if isinstance(space, gym.spaces.Tuple):
        return gym.spaces.Tuple([map_boxes(function, part) for part in space.spaces])
    return function(space) if isinstance(space, gym.spaces.Box) else space
