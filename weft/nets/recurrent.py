"""Recurrent actor-critic networks: a recurrent cell between the observation and the actor-critic network.

>>> import jax, jax.numpy as jnp
>>> spaces = gym.spaces.Box(-1, 1, (4,)), gym.spaces.Discrete(2)
>>> settings = {"hidden": (8,), "activation": "tanh", "shared": True}
>>> net = Recurrent(*spaces, memory="gru", memory_size=16, key=jax.random.key(0), **settings)
>>> memory, features = net.recall(net.initial(5), net.encode(jnp.zeros((5, 4))))
>>> memory[0].shape, net.policy(features).logits.shape, net.value(features).shape
((5, 16), (5, 2), (5,))
"""

from typing import Any, Literal

import equinox as eqx
import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from weft.envs.spaces import is_masked, without_mask
from weft.nets.actor_critic import ActorCritic
from weft.nets.encoder import Encoder, TorsoKind
from weft.nets.mlp import Activation
from weft.ops.distributions import Distribution

MemoryKind = Literal["none", "gru", "lstm"]


class Gates(eqx.Module):
    """One affine map for all gates of a cell, with orthogonal initial weights for each gate."""

    weight: Float[Array, "inputs outputs"]
    bias: Float[Array, " outputs"]

    def __init__(self, inputs: int, size: int, *, gates: int, key: jax.Array):
        orthogonal = jax.nn.initializers.orthogonal()
        blocks = [orthogonal(key, (inputs, size), jnp.float32) for key in jax.random.split(key, gates)]
        self.weight = jnp.concatenate(blocks, axis=-1)
        self.bias = jnp.zeros(gates * size, jnp.float32)

    def __call__(self, x: Float[Array, "*batch inputs"]) -> Float[Array, "*batch outputs"]:
        return x @ self.weight + self.bias


class GRU(eqx.Module):
    """A gated recurrent unit (Cho et al. 2014), in the variant with one product with the memory for all gates."""

    inputs: Gates
    hidden: Gates
    size: int = eqx.field(static=True)

    def __init__(self, inputs: int, size: int, *, key: jax.Array):
        key_inputs, key_hidden = jax.random.split(key)
        self.inputs = Gates(inputs, size, gates=3, key=key_inputs)
        self.hidden = Gates(size, size, gates=3, key=key_hidden)
        self.size = size

    def initial(self, n: int) -> Float[Array, "n size"]:
        return jnp.zeros((n, self.size), jnp.float32)

    def __call__(self, memory: Float[Array, "*batch size"], x: Float[Array, "*batch gates"]) -> tuple[Any, jax.Array]:
        x_reset, x_update, x_new = jnp.split(x, 3, axis=-1)
        h_reset, h_update, h_new = jnp.split(self.hidden(memory), 3, axis=-1)
        reset, update = jax.nn.sigmoid(x_reset + h_reset), jax.nn.sigmoid(x_update + h_update)
        new = jnp.tanh(x_new + reset * h_new)
        memory = (1.0 - update) * new + update * memory
        return memory, memory


class LSTM(eqx.Module):
    """Long short-term memory (Hochreiter and Schmidhuber 1997), with a forget bias of 1 (Jozefowicz et al. 2015)."""

    inputs: Gates
    hidden: Gates
    size: int = eqx.field(static=True)

    def __init__(self, inputs: int, size: int, *, key: jax.Array):
        key_inputs, key_hidden = jax.random.split(key)
        self.inputs = Gates(inputs, size, gates=4, key=key_inputs)
        self.hidden = Gates(size, size, gates=4, key=key_hidden)
        self.size = size

    def initial(self, n: int) -> tuple[jax.Array, jax.Array]:
        return jnp.zeros((n, self.size), jnp.float32), jnp.zeros((n, self.size), jnp.float32)

    def __call__(
        self, memory: tuple[jax.Array, jax.Array], x: Float[Array, "*batch gates"]
    ) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        hidden, cell = memory
        input_gate, forget_gate, new, output_gate = jnp.split(x + self.hidden(hidden), 4, axis=-1)
        cell = jax.nn.sigmoid(forget_gate + 1.0) * cell + jax.nn.sigmoid(input_gate) * jnp.tanh(new)
        hidden = jax.nn.sigmoid(output_gate) * jnp.tanh(cell)
        return (hidden, cell), hidden


CELLS = {"gru": GRU, "lstm": LSTM}


class Memory(eqx.Module):
    """An encoder and a recurrent cell."""

    encoder: Encoder
    cell: GRU | LSTM

    def __init__(self, space: gym.Space, kind: Literal["gru", "lstm"], size: int, *, torso: TorsoKind, key: jax.Array):
        key_encoder, key_cell = jax.random.split(key)
        self.encoder = Encoder(space, torso=torso, key=key_encoder)
        self.cell = CELLS[kind](self.encoder.size, size, key=key_cell)

    def encode(self, obs: Any) -> Float[Array, "*batch gates"]:
        """Returns the products of the encoded observations with the input weights, in one product for many steps."""
        return self.cell.inputs(self.encoder(obs))


class Recurrent(eqx.Module):
    """An actor-critic network on the output of memories: one each for policy and value, or one if `shared`.

    Acting also updates the critic's memory, which only learning reads. A shared memory saves that work, but then the
    gradients of the value dominate those of the policy unless `value_weight` is small, as with a shared torso.
    """

    memories: tuple[Memory, ...]
    net: ActorCritic
    masked: bool = eqx.field(static=True)

    def __init__(
        self,
        observation_space: gym.Space,
        action_space: gym.Space,
        *,
        memory: Literal["gru", "lstm"],
        memory_size: int,
        hidden: tuple[int, ...],
        activation: Activation,
        shared: bool,
        key: jax.Array,
        torso: TorsoKind = "auto",
        squash: bool = False,
    ):
        key_net, *keys = jax.random.split(key, 2 if shared else 3)
        space = without_mask(observation_space)
        self.masked = is_masked(observation_space)
        self.memories = tuple(Memory(space, memory, memory_size, torso=torso, key=key) for key in keys)
        self.net = ActorCritic(
            memory_output_space(observation_space, memory_size),
            action_space,
            hidden=hidden,
            activation=activation,
            shared=shared,
            key=key_net,
            squash=squash,
        )

    def initial(self, n: int) -> Any:
        return tuple(memory.cell.initial(n) for memory in self.memories)

    def encode(self, obs: Any) -> Any:
        """Returns the input of each memory, and the action mask."""
        inputs, mask = (obs["observation"], obs["action_mask"]) if self.masked else (obs, None)
        return tuple(memory.encode(inputs) for memory in self.memories), mask

    def recall(self, memory: Any, x: Any) -> tuple[Any, Any]:
        inputs, mask = x
        steps = [each.cell(state, x) for each, state, x in zip(self.memories, memory, inputs, strict=True)]
        next_memory, outputs = zip(*steps, strict=True)
        return next_memory, tuple({"observation": y, "action_mask": mask} if self.masked else y for y in outputs)

    def policy(self, features: Any) -> Distribution:
        return self.net.policy(features[0])

    def value(self, features: Any) -> Float[Array, "*batch"]:
        return self.net.value(features[-1])


def memory_output_space(space: gym.Space, size: int) -> gym.Space:
    """Returns the space of a memory's output, with the action mask of `space` if it has one."""
    features = gym.spaces.Box(-np.inf, np.inf, (size,), np.float32)
    return gym.spaces.Dict({**space.spaces, "observation": features}) if is_masked(space) else features
