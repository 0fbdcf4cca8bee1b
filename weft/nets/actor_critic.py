"""Actor-critic networks: a policy and a value function, with separate torsos or a shared one.

>>> import jax, jax.numpy as jnp
>>> spaces = gym.spaces.Box(-1, 1, (4,)), gym.spaces.Discrete(2)
>>> net = ActorCritic(*spaces, hidden=(8, 8), activation="tanh", shared=False, key=jax.random.key(0))
>>> net.policy(jnp.zeros((5, 4))).logits.shape, net.value(jnp.zeros((5, 4))).shape
((5, 2), (5,))
"""

import functools
from typing import Any, Protocol

import equinox as eqx
import gymnasium as gym
import jax
from jaxtyping import Array, Float

from weft.envs.spaces import is_masked, without_mask
from weft.nets.encoder import Encoder, TorsoKind, has_images
from weft.nets.heads import Head, check_mask, policy_head
from weft.nets.mlp import MLP, Activation, Linear
from weft.ops.distributions import Distribution


class Net(Protocol):
    """The interface that on-policy algorithms need. All leaves of a network must be arrays.

    Observations may have any leading axes; results have the same.
    """

    def policy(self, obs: Any, /) -> Distribution:
        """Returns the distribution over actions."""
        ...

    def value(self, obs: Any, /) -> jax.Array:
        """Returns the expected return."""
        ...


class Torso(eqx.Module):
    """Maps observations to features: an encoder, then hidden layers."""

    encoder: Encoder
    layers: MLP
    size: int = eqx.field(static=True)

    def __init__(
        self, space: gym.Space, hidden: tuple[int, ...], *, activation: Activation, torso: TorsoKind, key: jax.Array
    ):
        # An encoder without images has no random parameters, so the layers use the whole key.
        key_encoder, key_layers = jax.random.split(key) if has_images(space, torso) else (key, key)
        self.encoder = Encoder(space, torso=torso, key=key_encoder)
        self.layers = MLP(self.encoder.size, hidden, activation=activation, key=key_layers)
        self.size = hidden[-1] if hidden else self.encoder.size

    def __call__(self, obs: Any) -> Float[Array, "*batch features"]:
        return self.layers(self.encoder(obs))


class ActorCritic(eqx.Module):
    """A policy and a value function.

    Unless `shared`, each has its own torso. With images that is two convolutional networks, so share the torso there.
    """

    actor_torso: Torso
    critic_torso: Torso | None
    head: Head
    critic: Linear
    masked: bool = eqx.field(static=True)

    def __init__(
        self,
        observation_space: gym.Space,
        action_space: gym.Space,
        *,
        hidden: tuple[int, ...],
        activation: Activation,
        shared: bool,
        key: jax.Array,
        torso: TorsoKind = "auto",
        squash: bool = False,
    ):
        if is_masked(observation_space):
            check_mask(observation_space["action_mask"], action_space)
        self.masked = is_masked(observation_space)
        key_actor, key_critic, key_head, key_value = jax.random.split(key, 4)
        build = functools.partial(Torso, without_mask(observation_space), hidden, activation=activation, torso=torso)
        self.actor_torso = build(key=key_actor)
        self.critic_torso = None if shared else build(key=key_critic)
        features = self.actor_torso.size
        self.head = policy_head(action_space, features, squash=squash, key=key_head)
        self.critic = Linear(features, 1, scale=1.0, key=key_value)

    def policy(self, obs: Any) -> Distribution:
        inputs, mask = (obs["observation"], obs["action_mask"]) if self.masked else (obs, None)
        return self.head(self.actor_torso(inputs), mask)

    def value(self, obs: Any) -> Float[Array, "*batch"]:
        torso = self.actor_torso if self.critic_torso is None else self.critic_torso
        return self.critic(torso(obs["observation"] if self.masked else obs))[..., 0]
