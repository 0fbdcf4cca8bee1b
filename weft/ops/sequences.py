"""Learning from sequences, as R2D2 does: n-step targets of every step, value rescaling, and a sequence's priority.

>>> import jax.numpy as jnp
>>> r, no = jnp.ones((4, 1)), jnp.zeros((4, 1), bool)
>>> n_steps = n_step_each(r, terminated=no, truncated=no, valid=~no, gamma=0.5, n=2)
>>> n_steps.reward[:, 0].tolist(), n_steps.last[:, 0].tolist()
([1.5, 1.5, 1.5, 1.0], [1, 2, 3, 3])
>>> round(float(unscale(scale(jnp.float32(100.0)))), 2)
100.0
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from weft.ops.n_step import NStep, n_step

EPSILON = 1e-3


def n_step_each(
    r_t: Float[Array, "T B"],
    *,
    terminated: Bool[Array, "T B"],
    truncated: Bool[Array, "T B"],
    valid: Bool[Array, "T B"],
    gamma: float,
    n: int,
) -> NStep:
    """The n-step return of every step: leaves [T, B]; `last` is an index into the sequence.

    Near the end of the sequence a return has fewer steps and bootstraps from the last one.
    """
    length = len(r_t)
    starts = jnp.arange(length)
    window = starts[:, None] + jnp.arange(n)
    # Windows repeat the last step beyond the end of the sequence; truncating there makes the repeats count nothing.
    truncated = truncated.at[-1].set(True)

    def windows(x: jax.Array) -> jax.Array:
        return x[jnp.minimum(window, length - 1)]

    def in_window(reward: jax.Array, terminated: jax.Array, truncated: jax.Array, valid: jax.Array) -> NStep:
        return n_step(reward, terminated=terminated, truncated=truncated, valid=valid, gamma=gamma)

    n_steps = jax.vmap(in_window)(windows(r_t), windows(terminated), windows(truncated), windows(valid))
    return NStep(n_steps.reward, n_steps.discount, n_steps.last + starts[:, None].astype(n_steps.last.dtype))


def scale(x: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
    """The value rescaling h(x) = sign(x) (sqrt(|x| + 1) - 1) + epsilon x: linear near 0, a square root far from it.

    With it rewards need no clipping (Pohlen et al. 2018; Kapturowski et al. 2019, section 2.3).
    """
    return _signed(jnp.sqrt(jnp.abs(x) + 1.0) - 1.0, x) + EPSILON * x


def unscale(x: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
    """The inverse of `scale`."""
    root = jnp.sqrt(1.0 + 4.0 * EPSILON * (jnp.abs(x) + 1.0 + EPSILON))
    return _signed(jnp.square((root - 1.0) / (2.0 * EPSILON)) - 1.0, x)


def sequence_priority(error: Float[Array, "T B"], valid: Bool[Array, "T B"], mix: float) -> Float[Array, " B"]:
    """mix * max |error| + (1 - mix) * mean |error| over the valid steps (Kapturowski et al. 2019, section 2.3)."""
    error = jnp.where(valid, jnp.abs(error), 0.0)
    count = jnp.maximum(jnp.sum(valid.astype(error.dtype), axis=0), 1.0)
    return mix * jnp.max(error, axis=0) + (1.0 - mix) * jnp.sum(error, axis=0) / count


def _signed(size: Float[Array, "*batch"], x: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
    """`size` with the sign of `x`."""
    # Not sign(x) * size: a compiler may fuse that product into a following sum, and programs would differ in a bit.
    return jnp.where(x < 0.0, -size, size)
