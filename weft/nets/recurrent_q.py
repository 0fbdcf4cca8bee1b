"""Values of actions with a memory: a recurrent cell between the observation and what every choice is worth.

>>> import jax, jax.numpy as jnp
>>> spaces = gym.spaces.Box(-1, 1, (4,)), gym.spaces.Discrete(2)
>>> net = RecurrentQ(*spaces, memory="gru", memory_size=16, hidden=(8,), activation="relu", key=jax.random.key(0))
>>> memory, seen = net.recall(net.initial(5), net.encode(jnp.zeros((5, 4))))
>>> memory.shape, net(seen).shape
((5, 16), (5, 2, 1))
"""

from typing import Any, Literal

import equinox as eqx
import gymnasium as gym
import jax
from jaxtyping import Array, Float

from weft.nets.encoder import TorsoKind, without_mask
from weft.nets.mlp import Activation
from weft.nets.q import QNet
from weft.nets.recurrent import Memory, seen_space


class RecurrentQ(eqx.Module):
    """What a memory gives to what every choice is worth; `weft.ops.memory` says what its methods are for."""

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
        space = seen_space(observation_space, memory_size)
        self.net = QNet(space, action_space, hidden=hidden, activation=activation, dueling=dueling, key=key_net)

    def initial(self, n: int) -> Any:
        return self.memory.cell.initial(n)

    def encode(self, obs: Any) -> Any:
        """What the memory is given, and the mask."""
        if self.net.masked:
            return self.memory.encode(obs["observation"]), obs["action_mask"]
        return self.memory.encode(obs), None

    def recall(self, memory: Any, x: Any) -> tuple[Any, Any]:
        given, mask = x
        memory, seen = self.memory.cell(memory, given)
        return memory, {"observation": seen, "action_mask": mask} if self.net.masked else seen

    def __call__(self, seen: Any) -> Float[Array, "*batch choices atoms"]:
        return self.net(seen)

    def allowed(self, seen: Any) -> jax.Array | None:
        """Which choices there are, if the observation says."""
        return self.net.allowed(seen)
