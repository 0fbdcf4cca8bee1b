"""What follows a step over the next n, and where that leads: the targets of value learning, time-major [T, B].

>>> import jax.numpy as jnp
>>> r, no = jnp.ones((3, 2)), jnp.zeros((3, 2), bool)
>>> ended = no.at[1, 1].set(True)
>>> found = n_step(r, terminated=ended, truncated=no, valid=~no, gamma=0.5)
>>> found.reward.tolist(), found.discount.tolist(), found.last.tolist()
([1.75, 1.5], [0.125, 0.0], [2, 1])
"""

from dataclasses import dataclass
from typing import TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from weft.ops.returns import cut

T = TypeVar("T")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class NStep:
    """The n steps after the first: fewer where its episode ends before."""

    reward: Float[Array, " B"]
    """Their discounted sum."""
    discount: Float[Array, " B"]
    """What the value of where the last of them led counts: nothing after a termination."""
    last: Int[Array, " B"]
    """Which of them is the last."""


def n_step(
    r_t: Float[Array, "T B"],
    *,
    terminated: Bool[Array, "T B"],
    truncated: Bool[Array, "T B"],
    valid: Bool[Array, "T B"],
    gamma: float,
) -> NStep:
    """Rewards of the first step's episode up to T steps, and the discount of what comes after (Watkins 1989)."""
    over = terminated | cut(truncated, valid)
    # A step counts if nothing was over before it.
    counts = jnp.cumprod(jnp.concatenate([jnp.ones_like(r_t[:1]), 1.0 - over[:-1].astype(r_t.dtype)]), axis=0)
    discounts = gamma ** jnp.arange(len(r_t), dtype=r_t.dtype)[:, None]
    last = jnp.sum(counts, axis=0).astype(jnp.int32) - 1
    stays = 1.0 - at_step(terminated, last).astype(r_t.dtype)
    return NStep(jnp.sum(counts * discounts * r_t, axis=0), gamma ** (last + 1).astype(r_t.dtype) * stays, last)


def at_step(tree: T, step: Int[Array, " B"]) -> T:
    """Leaves [T, B, ...] at one step of every column, [B, ...]."""
    return jax.tree.map(lambda x: x[step, jnp.arange(len(step))], tree)
