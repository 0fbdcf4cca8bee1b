"""Policies and critics for actions that are numbers within bounds: what DDPG, TD3, D4PG and SAC learn.

A policy gives actions by themselves (`Actor`) or a distribution over them (`SquashedActor`). A critic says what an
action is worth where it is taken, as a number or as the logits of a distribution over returns. Critics come several at
a time, as an `Ensemble`: one network with an axis in front of every array, so that all of them are one product.
Settings are those of a `Torso`.

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

# The logarithm of a normal's spread is kept within these: neither certain for ever, nor at both bounds at once.
LOG_STD = (-5.0, 2.0)


@dataclass(frozen=True)
class Bounds:
    """Where the actions of a Box are: flat tuples, and the shape of an action. A part of the program, not of the data.

    >>> bounds = Bounds.of(gym.spaces.Box(0, 4, (2,)))
    >>> bounds.stretch(jnp.array([-1.0, 0.5])).tolist(), bounds.shrink(jnp.array([0.0, 3.0])).tolist()
    ([0.0, 3.0], [-1.0, 0.5])
    """

    low: tuple[float, ...]
    high: tuple[float, ...]
    shape: tuple[int, ...]

    @classmethod
    def of(cls, space: gym.Space) -> "Bounds":
        if not isinstance(space, gym.spaces.Box):
            other = "dqn or discrete_sac, offline cql" if isinstance(space, gym.spaces.Discrete) else "ppo"
            raise WeftError(f"this algorithm is for actions that are numbers (a Box), not for {space}: use {other}")
        found = bounds_of(space)
        if found is None:
            raise WeftError(f"this algorithm is for actions within bounds, and {space} has none somewhere: use ppo")
        return cls(*found, space.shape)

    def stretch(self, x: Float[Array, "*batch_and_shape"]) -> Float[Array, "*batch_and_shape"]:
        """Numbers from -1 to 1 as actions; what is beyond that ends up at the bounds."""
        low, high = self._arrays()
        return jnp.clip((low + high) / 2 + self.reach * x, low, high)

    def shrink(self, action: Float[Array, "*batch_and_shape"]) -> Float[Array, "*batch_and_shape"]:
        """Actions as numbers from -1 to 1."""
        low, high = self._arrays()
        return (action - (low + high) / 2) / self.reach

    def nudge(
        self, action: Float[Array, "*batch_and_shape"], by: Float[Array, "*batch_and_shape"]
    ) -> Float[Array, "*batch_and_shape"]:
        """Actions moved by a share of how far they reach from the middle, within the bounds."""
        return jnp.clip(action + self.reach * by, *self._arrays())

    @property
    def reach(self) -> np.ndarray:
        """Half of the way from the lowest action to the highest."""
        low, high = self._arrays()
        return (high - low) / 2

    @property
    def log_volume(self) -> float:
        """The logarithm of how much room there is; less that is the log density of an action at random."""
        return float(np.sum(np.log(2 * self.reach)))

    def _arrays(self) -> tuple[np.ndarray, np.ndarray]:
        low, high = (np.asarray(bound, np.float32).reshape(self.shape) for bound in (self.low, self.high))
        return low, high


class Actor(eqx.Module):
    """Observations to actions, through tanh and onto their bounds."""

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
        return self.bounds.stretch(jnp.tanh(x))


class SquashedActor(eqx.Module):
    """Observations to a normal distribution squashed onto the bounds, with a spread of its own in every state."""

    torso: Torso
    mean: Linear
    log_std: Linear
    bounds: Bounds = eqx.field(static=True)

    def __init__(self, observation_space: gym.Space, action_space: gym.Space, *, key: jax.Array, **settings: Any):
        self.bounds = Bounds.of(action_space)
        key_torso, key_mean, key_spread = jax.random.split(key, 3)
        self.torso = Torso(observation_space, **settings, key=key_torso)
        self.mean, self.log_std = (
            Linear(self.torso.size, len(self.bounds.low), scale=POLICY_SCALE, key=key) for key in (key_mean, key_spread)
        )

    def __call__(self, obs: Any) -> SquashedGaussian:
        features = self.torso(obs)
        shape = (*features.shape[:-1], *self.bounds.shape)
        mean, log_std = self.mean(features).reshape(shape), self.log_std(features).reshape(shape)
        rank = len(self.bounds.shape)
        return SquashedGaussian(mean, jnp.clip(log_std, *LOG_STD), self.bounds.low, self.bounds.high, rank)


class Critic(eqx.Module):
    """Observations and actions to what those are worth: `atoms` numbers, the logits of a distribution if several."""

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
        return self.last(self.torso((obs, self.bounds.shrink(action))))


class Ensemble(eqx.Module):
    """Several networks of one kind, each with a beginning of its own, that are given the same."""

    members: Any

    def __init__(self, build: Callable[[jax.Array], Any], count: int, *, key: jax.Array):
        self.members = jax.vmap(build)(jax.random.split(key, count))

    def __call__(self, *given: Any) -> Float[Array, "members *out"]:
        return jax.vmap(lambda member: member(*given))(self.members)

    def first(self, *given: Any) -> Float[Array, "*out"]:
        """What the first member alone says."""
        return jax.tree.map(lambda x: x[0], self.members)(*given)


class Controller(eqx.Module):
    """All that an actor-critic algorithm with replay trains."""

    actor: Any
    """Gives actions, or a distribution over them."""
    critics: Ensemble
    log_temperature: Any = None
    """The logarithm of what entropy is worth in units of reward, if a policy is paid for it."""
