"""n-step returns of the first of several consecutive steps, time-major [T, B]: the targets of value learning.

>>> import jax.numpy as jnp
>>> r, no = jnp.ones((3, 2)), jnp.zeros((3, 2), bool)
>>> ended = no.at[1, 1].set(True)
>>> n_steps = n_step(r, terminated=ended, truncated=no, valid=~no, gamma=0.5)
>>> n_steps.reward.tolist(), n_steps.discount.tolist(), n_steps.last.tolist()
([1.75, 1.5], [0.125, 0.0], [2, 1])
"""

from dataclasses import dataclass
from typing import TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from weft.ops.returns import truncated_before_invalid

T = TypeVar("T")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class NStep:
    """An n-step return without its bootstrap value; it has fewer steps where the episode ends earlier."""

    reward: Float[Array, " B"]
    """The discounted sum of rewards."""
    discount: Float[Array, " B"]
    """The factor of the bootstrap value: gamma^n, or 0 after a termination."""
    last: Int[Array, " B"]
    """The index of the last step of the sum; the bootstrap value is that of the observation it led to."""

    def bootstrap(self, v_t: Float[Array, "*#critics B"]) -> Float[Array, "*critics B"]:
        """The n-step return r_t + ... + gamma^n v, with the value after the last step."""
        return self.reward + self.discount * v_t


def n_step(
    r_t: Float[Array, "T B"],
    *,
    terminated: Bool[Array, "T B"],
    truncated: Bool[Array, "T B"],
    valid: Bool[Array, "T B"],
    gamma: float,
) -> NStep:
    """The n-step return of the first step, over T steps or to the end of its episode (Watkins 1989)."""
    ended = terminated | truncated_before_invalid(truncated, valid)
    # 1 for the steps before which no episode ended.
    counts = jnp.cumprod(jnp.concatenate([jnp.ones_like(r_t[:1]), 1.0 - ended[:-1].astype(r_t.dtype)]), axis=0)
    discounts = gamma ** jnp.arange(len(r_t), dtype=r_t.dtype)[:, None]
    last = jnp.sum(counts, axis=0).astype(jnp.int32) - 1
    continues = 1.0 - at_step(terminated, last).astype(r_t.dtype)
    return NStep(jnp.sum(counts * discounts * r_t, axis=0), gamma ** (last + 1).astype(r_t.dtype) * continues, last)


def at_step(tree: T, step: Int[Array, " B"]) -> T:
    """Leaves [T, B, ...] at one step of every column, [B, ...]."""
    return jax.tree.map(lambda x: jax.vmap(lambda column, t: column[t], in_axes=(1, 0))(x, step), tree)


def first_step(tree: T) -> T:
    """Leaves [T, B, ...] at the first step, [B, ...]."""
    return jax.tree.map(lambda x: x[0], tree)


def single_steps(tree: T) -> T:
    """Leaves [T, B, ...] as T * B items of one step each, [1, T * B, ...]."""
    return jax.tree.map(lambda x: x.reshape(1, -1, *x.shape[2:]), tree)
