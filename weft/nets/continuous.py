"""Networks for continuous actions within bounds, as DDPG, TD3, D4PG and SAC train them.

A policy returns actions (`Actor`) or a distribution over actions (`SquashedActor`). A critic returns the value of an
action in a state, as a number or as the logits of a distribution over returns. An `Ensemble` holds several critics as
one network whose arrays have a leading axis, so that one batched product evaluates all of them. `settings` are those
of a `Torso`.

>>> import jax, jax.numpy as jnp
>>> spaces = gym.spaces.Box(-1, 1, (4,)), gym.spaces.Box(-2, 2, (3,))
>>> settings = {"hidden": (8,), "activation": "relu", "torso": "auto"}
>>> actor = Actor(*spaces, **settings, key=jax.random.key(0))
>>> critics = Ensemble(lambda key: Critic(*spaces, **settings, key=key), 2, key=jax.random.key(1))
>>> critics(jnp.zeros((5, 4)), actor(jnp.zeros((5, 4)))).shape
(2, 5, 1)
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from weft.errors import WeftError
from weft.nets.actor_critic import Torso
from weft.nets.heads import POLICY_SCALE, bounds_of
from weft.nets.mlp import Linear
from weft.ops.distributions import SquashedGaussian

# Limits of the log standard deviation. Below the lower one the policy would stop exploring; above the upper one most
# samples would be squashed onto the bounds.
LOG_STD = (-5.0, 2.0)


@dataclass(frozen=True)
class Bounds:
    """The bounds of a Box of actions, as flat tuples, and the shape of an action. Static: not a pytree of arrays.

    >>> bounds = Bounds.of(gym.spaces.Box(0, 4, (2,)))
    >>> bounds.from_unit(jnp.array([-1.0, 0.5])).tolist(), bounds.to_unit(jnp.array([0.0, 3.0])).tolist()
    ([0.0, 3.0], [-1.0, 0.5])
    """

    low: tuple[float, ...]
    high: tuple[float, ...]
    shape: tuple[int, ...]

    @classmethod
    def of(cls, space: gym.Space) -> "Bounds":
        if not isinstance(space, gym.spaces.Box):
            other = "dqn or discrete_sac, offline cql" if isinstance(space, gym.spaces.Discrete) else "ppo"
            raise WeftError(
                f"this algorithm needs continuous actions (a Box), and the action space is {space}: use {other}"
            )
        bounds = bounds_of(space)
        if bounds is None:
            raise WeftError(f"the actions are {space}, and this algorithm needs finite bounds with low < high: use ppo")
        return cls(*bounds, space.shape)

    def from_unit(self, x: Float[Array, "*batch_and_shape"]) -> Float[Array, "*batch_and_shape"]:
        """Returns actions for numbers from -1 to 1. Clips numbers outside to the bounds."""
        low, high = self._arrays()
        return jnp.clip((low + high) / 2 + self.half_range * x, low, high)

    def to_unit(self, action: Float[Array, "*batch_and_shape"]) -> Float[Array, "*batch_and_shape"]:
        """Returns actions rescaled to -1 to 1."""
        low, high = self._arrays()
        return (action - (low + high) / 2) / self.half_range

    def perturb(
        self, action: Float[Array, "*batch_and_shape"], noise: Float[Array, "*batch_and_shape"]
    ) -> Float[Array, "*batch_and_shape"]:
        """Returns actions with `noise` added, in units of `half_range`, and clipped to the bounds."""
        return jnp.clip(action + self.half_range * noise, *self._arrays())

    @property
    def half_range(self) -> np.ndarray:
        """Half of the distance between the bounds."""
        low, high = self._arrays()
        return (high - low) / 2

    @property
    def log_volume(self) -> float:
        """The log volume of the action space. A uniformly random action has log density `-log_volume`."""
        return float(np.sum(np.log(2 * self.half_range)))

    def _arrays(self) -> tuple[np.ndarray, np.ndarray]:
        low, high = (np.asarray(bound, np.float32).reshape(self.shape) for bound in (self.low, self.high))
        return low, high


class Actor(eqx.Module):
    """A deterministic policy. Its output is squashed by tanh and scaled to the bounds."""

    torso: Torso
    last: Linear
    bounds: Bounds = eqx.field(static=True)

    def __init__(self, observation_space: gym.Space, action_space: gym.Space, *, key: jax.Array, **settings: Any):
        self.bounds = Bounds.of(action_space)
        key_torso, key_last = jax.random.split(key)
        self.torso = Torso(observation_space, **settings, key=key_torso)
        self.last = Linear(self.torso.size, len(self.bounds.low), scale=POLICY_SCALE, key=key_last)

    def __call__(self, obs: Any) -> Float[Array, "*batch_and_shape"]:
        features = self.torso(obs)
        x = self.last(features).reshape(*features.shape[:-1], *self.bounds.shape)
        return self.bounds.from_unit(jnp.tanh(x))


class SquashedActor(eqx.Module):
    """A policy that returns a squashed normal distribution with a state-dependent standard deviation."""

    torso: Torso
    mean: Linear
    log_std: Linear
    bounds: Bounds = eqx.field(static=True)

    def __init__(self, observation_space: gym.Space, action_space: gym.Space, *, key: jax.Array, **settings: Any):
        self.bounds = Bounds.of(action_space)
        key_torso, key_mean, key_log_std = jax.random.split(key, 3)
        self.torso = Torso(observation_space, **settings, key=key_torso)
        self.mean, self.log_std = (
            Linear(self.torso.size, len(self.bounds.low), scale=POLICY_SCALE, key=key)
            for key in (key_mean, key_log_std)
        )

    def __call__(self, obs: Any) -> SquashedGaussian:
        features = self.torso(obs)
        shape = (*features.shape[:-1], *self.bounds.shape)
        mean, log_std = self.mean(features).reshape(shape), self.log_std(features).reshape(shape)
        rank = len(self.bounds.shape)
        return SquashedGaussian(mean, jnp.clip(log_std, *LOG_STD), self.bounds.low, self.bounds.high, rank)


class Critic(eqx.Module):
    """Returns the value of an action in a state, or the `atoms` logits of a distribution over returns."""

    torso: Torso
    last: Linear
    bounds: Bounds = eqx.field(static=True)

    def __init__(
        self, observation_space: gym.Space, action_space: gym.Space, *, key: jax.Array, atoms: int = 1, **settings: Any
    ):
        self.bounds = Bounds.of(action_space)
        key_torso, key_last = jax.random.split(key)
        both = gym.spaces.Tuple((observation_space, gym.spaces.Box(-1, 1, self.bounds.shape)))
        self.torso = Torso(both, **settings, key=key_torso)
        self.last = Linear(self.torso.size, atoms, scale=1.0, key=key_last)

    def __call__(self, obs: Any, action: Float[Array, "*batch_and_shape"]) -> Float[Array, "*batch atoms"]:
        return self.last(self.torso((obs, self.bounds.to_unit(action))))


class Ensemble(eqx.Module):
    """Several networks of one architecture with independent initial parameters, called on the same inputs."""

    members: Any

    def __init__(self, build: Callable[[jax.Array], Any], count: int, *, key: jax.Array):
        self.members = jax.vmap(build)(jax.random.split(key, count))

    def __call__(self, *inputs: Any) -> Float[Array, "members *out"]:
        return jax.vmap(lambda member: member(*inputs))(self.members)

    def first(self, *inputs: Any) -> Float[Array, "*out"]:
        """The output of the first member only."""
        return jax.tree.map(lambda x: x[0], self.members)(*inputs)


class ActorCriticNets(eqx.Module):
    """The trained parameters of an actor-critic algorithm with replay."""

    actor: Any
    """Returns actions, or a distribution over actions."""
    critics: Ensemble
    log_temperature: Any = None
    """The log of the entropy coefficient, or None for algorithms without an entropy bonus."""
