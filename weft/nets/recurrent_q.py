"""Recurrent Q-networks: a recurrent cell between the observation and the Q-network.

>>> import jax, jax.numpy as jnp
>>> spaces = gym.spaces.Box(-1, 1, (4,)), gym.spaces.Discrete(2)
>>> net = RecurrentQ(*spaces, memory="gru", memory_size=16, hidden=(8,), activation="relu", key=jax.random.key(0))
>>> memory, features = net.recall(net.initial(5), net.encode(jnp.zeros((5, 4))))
>>> memory.shape, net(features).shape
((5, 16), (5, 2, 1))
"""

from typing import Any, Literal

import equinox as eqx
import gymnasium as gym
import jax
from jaxtyping import Array, Float

from weft.envs.spaces import without_mask
from weft.nets.encoder import TorsoKind
from weft.nets.mlp import Activation
from weft.nets.q import QNet
from weft.nets.recurrent import Memory, memory_output_space


class RecurrentQ(eqx.Module):
    """A memory and a Q-network on its output. `weft.ops.memory` describes the methods."""

    memory: Memory
    net: QNet

    def __init__(
        self,
        observation_space: gym.Space,
        action_space: gym.Space,
        *,
        memory: Literal["gru", "lstm"],
        memory_size: int,
        hidden: tuple[int, ...],
        activation: Activation,
        key: jax.Array,
        torso: TorsoKind = "auto",
        dueling: bool = False,
    ):
        key_memory, key_net = jax.random.split(key)
        self.memory = Memory(without_mask(observation_space), memory, memory_size, torso=torso, key=key_memory)
        space = memory_output_space(observation_space, memory_size)
        self.net = QNet(space, action_space, hidden=hidden, activation=activation, dueling=dueling, key=key_net)

    def initial(self, n: int) -> Any:
        return self.memory.cell.initial(n)

    def encode(self, obs: Any) -> Any:
        """Returns the input of the memory, and the action mask."""
        if self.net.masked:
            return self.memory.encode(obs["observation"]), obs["action_mask"]
        return self.memory.encode(obs), None

    def recall(self, memory: Any, x: Any) -> tuple[Any, Any]:
        inputs, mask = x
        memory, features = self.memory.cell(memory, inputs)
        return memory, {"observation": features, "action_mask": mask} if self.net.masked else features

    def __call__(self, features: Any) -> Float[Array, "*batch actions atoms"]:
        return self.net(features)

    def allowed(self, features: Any) -> jax.Array | None:
        """Returns which actions are valid, or None if observations have no action mask."""
        return self.net.allowed(features)
