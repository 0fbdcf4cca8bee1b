"""A policy and a value function, on torsos of their own or on one that they share.

>>> import jax, jax.numpy as jnp
>>> spaces = gym.spaces.Box(-1, 1, (4,)), gym.spaces.Discrete(2)
>>> net = ActorCritic(*spaces, hidden=(8, 8), activation="tanh", shared=False, key=jax.random.key(0))
>>> net.policy(jnp.zeros((5, 4))).logits.shape, net.value(jnp.zeros((5, 4))).shape
((5, 2), (5,))
"""

import equinox as eqx
import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from weft.errors import WeftError
from weft.nets.mlp import MLP, Activation, Linear
from weft.ops.distributions import Categorical, DiagonalGaussian, Distribution, action_size

# Small first logits and means: exploration starts out even, whatever the features (Andrychowicz et al. 2021).
POLICY_SCALE = 0.01


class CategoricalHead(eqx.Module):
    """Features to a choice of one of several actions."""

    logits: Linear

    def __call__(self, features: Float[Array, "*batch features"]) -> Categorical:
        return Categorical(self.logits(features))


class GaussianHead(eqx.Module):
    """Features to a normal distribution whose spread is learned, but is the same in every state."""

    mean: Linear
    log_std: Float[Array, " size"]

    def __call__(self, features: Float[Array, "*batch features"]) -> DiagonalGaussian:
        mean = self.mean(features)
        return DiagonalGaussian(mean, jnp.broadcast_to(self.log_std, mean.shape))


class ActorCritic(eqx.Module):
    """`policy(obs)` is a distribution over actions, `value(obs)` the return expected from there."""

    actor_torso: MLP
    critic_torso: MLP | None
    head: CategoricalHead | GaussianHead
    critic: Linear
    obs_shape: tuple[int, ...] = eqx.field(static=True)

    def __init__(
        self,
        observation_space: gym.Space,
        action_space: gym.Space,
        *,
        hidden: tuple[int, ...],
        activation: Activation,
        shared: bool,
        key: jax.Array,
    ):
        if not isinstance(observation_space, gym.spaces.Box):
            raise WeftError(f"no network for observation space {observation_space}: it must be a Box")
        self.obs_shape = observation_space.shape
        inputs = int(np.prod(self.obs_shape))
        features = hidden[-1] if hidden else inputs
        key_actor, key_critic, key_head, key_value = jax.random.split(key, 4)
        self.actor_torso = MLP(inputs, hidden, activation=activation, key=key_actor)
        self.critic_torso = None if shared else MLP(inputs, hidden, activation=activation, key=key_critic)
        self.head = _head(action_space, features, key_head)
        self.critic = Linear(features, 1, scale=1.0, key=key_value)

    def policy(self, obs: Float[Array, "*batch_and_obs"]) -> Distribution:
        return self.head(self.actor_torso(self._flat(obs)))

    def value(self, obs: Float[Array, "*batch_and_obs"]) -> Float[Array, "*batch"]:
        torso = self.actor_torso if self.critic_torso is None else self.critic_torso
        return self.critic(torso(self._flat(obs)))[..., 0]

    def _flat(self, obs: jax.Array) -> jax.Array:
        batch = obs.shape[: obs.ndim - len(self.obs_shape)]
        return obs.reshape(*batch, -1)


def _head(space: gym.Space, features: int, key: jax.Array) -> CategoricalHead | GaussianHead:
    size = action_size(space)
    last = Linear(features, size, scale=POLICY_SCALE, key=key)
    if isinstance(space, gym.spaces.Discrete):
        return CategoricalHead(last)
    return GaussianHead(last, jnp.zeros(size, jnp.float32))
