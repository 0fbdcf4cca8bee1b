"""A policy network without a value function.

>>> import jax, jax.numpy as jnp
>>> spaces = gym.spaces.Box(-1, 1, (4,)), gym.spaces.Discrete(2)
>>> Policy(*spaces, hidden=(8,), activation="relu", key=jax.random.key(0))(jnp.zeros((5, 4))).logits.shape
(5, 2)
"""

from typing import Any

import equinox as eqx
import gymnasium as gym
import jax

from weft.envs.spaces import is_masked, without_mask
from weft.nets.actor_critic import Torso
from weft.nets.encoder import TorsoKind
from weft.nets.heads import Head, check_mask, policy_head
from weft.nets.mlp import Activation
from weft.ops.distributions import Distribution


class Policy(eqx.Module):
    """Maps observations to a distribution over actions, by a torso and a head."""

    torso: Torso
    head: Head
    masked: bool = eqx.field(static=True)

    def __init__(
        self,
        observation_space: gym.Space,
        action_space: gym.Space,
        *,
        hidden: tuple[int, ...],
        activation: Activation,
        key: jax.Array,
        torso: TorsoKind = "auto",
    ):
        if is_masked(observation_space):
            check_mask(observation_space["action_mask"], action_space)
        self.masked = is_masked(observation_space)
        key_torso, key_head = jax.random.split(key)
        self.torso = Torso(without_mask(observation_space), hidden, activation=activation, torso=torso, key=key_torso)
        self.head = policy_head(action_space, self.torso.size, key=key_head)

    def __call__(self, obs: Any) -> Distribution:
        inputs, mask = (obs["observation"], obs["action_mask"]) if self.masked else (obs, None)
        return self.head(self.torso(inputs), mask)
