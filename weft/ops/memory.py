"""The memory of recurrent networks, and unrolling a network over recorded steps.

A recurrent network has three methods beside `policy` and `value`:

- `initial(n)` returns the memory of `n` environments at the start of an episode: zeros, leaves [n, ...];
- `encode(obs)` embeds observations with any leading axes, so that many time steps are one product;
- `recall(memory, x)` is one step of the cell: it returns the next memory and the input of `policy` and `value`.

Any other network has the memory `()`, and its `policy` and `value` take observations. The functions here hide the
difference, so that an algorithm is written once.

>>> import jax.numpy as jnp
>>> class Counter:
...     def initial(self, n): return jnp.zeros((n, 1))
...     def encode(self, obs): return jnp.ones_like(obs)
...     def recall(self, memory, x): return memory + x, memory + x
>>> ended = jnp.array([[False], [True], [False]])
>>> past = Past(initial_memory(Counter(), 1)[None], ended)
>>> inputs, _ = unroll(Counter(), jnp.zeros((3, 1, 1)), past)
>>> inputs[:, 0, 0].tolist()
[1.0, 2.0, 1.0]
"""

from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool

T = TypeVar("T")


@runtime_checkable
class RecurrentNet(Protocol):
    """A network with a memory."""

    def initial(self, n: int) -> Any: ...
    def encode(self, obs: Any) -> Any: ...
    def recall(self, memory: Any, x: Any) -> tuple[Any, Any]: ...


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Past:
    """What it takes to unroll a recurrent network over a trajectory: its first memory, and where episodes ended."""

    memory: Any
    """Leaves [1, B, ...]: with a time axis of length 1."""
    ended: Bool[Array, "T B"]


def initial_memory(net: Any, num_envs: int) -> Any:
    """The memory at the start of `num_envs` episodes."""
    return net.initial(num_envs) if isinstance(net, RecurrentNet) else ()


def step_memory(net: Any, memory: Any, obs: Any) -> tuple[Any, Any]:
    """The memory after an observation, and the input of `policy` and `value`."""
    return net.recall(memory, net.encode(obs)) if isinstance(net, RecurrentNet) else (memory, obs)


def unroll(net: Any, obs: Any, past: Past | None, *, time: int = 0) -> tuple[Any, Any]:
    """The input of `policy` and `value` at every step, and the memory after every step, before any reset.

    Leaves are [T, B, ...], or [B, T, ...] with `time=1`.
    """
    if past is None:
        return obs, ()

    def step(memory: Any, inputs: tuple[Any, jax.Array]) -> tuple[Any, tuple[Any, Any]]:
        x_t, ended_t = inputs
        next_memory, output = net.recall(memory, x_t)
        return forget(next_memory, ended_t), (output, next_memory)

    steps = _time_first((net.encode(obs), past.ended), time)
    memory = jax.tree.map(lambda x: lax.index_in_dim(x, 0, time, keepdims=False), past.memory)
    return _time_first(lax.scan(step, memory, steps)[1], time)


def forget(memory: T, ended: Bool[Array, "*batch"]) -> T:
    """The memory, reset to zeros where an episode ended."""
    return jax.tree.map(
        lambda x: jnp.where(ended.reshape(ended.shape + (1,) * (x.ndim - ended.ndim)), jnp.zeros_like(x), x), memory
    )


def _time_first(tree: T, time: int) -> T:
    """Swaps axis 0 and the time axis; applied twice it is the identity."""
    return jax.tree.map(lambda x: jnp.swapaxes(x, 0, time), tree) if time else tree
