"""What a network remembers from step to step, and going through experience again as it was gone through.

A network that remembers has three methods beside `policy` and `value`:

- `initial(n)` is the memory of `n` environments at the start of their episodes: zeros, with the axis [n] first;
- `encode(obs)` is what an observation is to the memory, with any axes in front: it is computed for many steps at once;
- `recall(memory, x)` is one step: the memory after it, and what is seen: what `policy` and `value` take instead of an
  observation.

Any other network remembers nothing: its memory is `()`, and it sees observations themselves. So an algorithm is written
once, with the functions here, and for such a network they come to nothing.

>>> import jax.numpy as jnp
>>> class Counter:
...     def initial(self, n): return jnp.zeros((n, 1))
...     def encode(self, obs): return jnp.ones_like(obs)
...     def recall(self, memory, x): return memory + x, memory + x
>>> ended = jnp.array([[False], [True], [False]])
>>> past = Past(initial(Counter(), 1)[None], ended)
>>> seen, _ = unroll(Counter(), jnp.zeros((3, 1, 1)), past)
>>> seen[:, 0, 0].tolist()
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
class Remembers(Protocol):
    """A network with a memory."""

    def initial(self, n: int) -> Any: ...
    def encode(self, obs: Any) -> Any: ...
    def recall(self, memory: Any, x: Any) -> tuple[Any, Any]: ...


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Past:
    """What it takes to go through a piece of experience again: the memory it began with, and where episodes ended."""

    memory: Any
    """Leaves [1, B, ...]: the time axis of everything else, with one step."""
    ended: Bool[Array, "T B"]


def initial(net: Any, num_envs: int) -> Any:
    """The memory at the start of `num_envs` episodes."""
    return net.initial(num_envs) if isinstance(net, Remembers) else ()


def see(net: Any, memory: Any, obs: Any) -> tuple[Any, Any]:
    """The memory after an observation, and what is seen."""
    return net.recall(memory, net.encode(obs)) if isinstance(net, Remembers) else (memory, obs)


def unroll(net: Any, obs: Any, past: Past | None, *, time: int = 0) -> tuple[Any, Any]:
    """What is seen at every step of a piece, and the memory after it: before it is lost where an episode ended.

    Leaves are [T, B, ...], or [B, T, ...] with `time=1`.
    """
    if past is None:
        return obs, ()

    def tick(memory: Any, now: tuple[Any, jax.Array]) -> tuple[Any, tuple[Any, Any]]:
        x_t, ended_t = now
        after, seen = net.recall(memory, x_t)
        return forget(after, ended_t), (seen, after)

    steps = _time_first((net.encode(obs), past.ended), time)
    memory = jax.tree.map(lambda x: lax.index_in_dim(x, 0, time, keepdims=False), past.memory)
    return _time_first(lax.scan(tick, memory, steps)[1], time)


def forget(memory: T, ended: Bool[Array, "*batch"]) -> T:
    """Memory that starts anew where an episode ended."""
    return jax.tree.map(
        lambda x: jnp.where(ended.reshape(ended.shape + (1,) * (x.ndim - ended.ndim)), jnp.zeros_like(x), x), memory
    )


def _time_first(tree: T, time: int) -> T:
    """Exchange the first axis with that of time; doing it twice undoes it."""
    return jax.tree.map(lambda x: jnp.swapaxes(x, 0, time), tree) if time else tree
