"""Learning from sequences of steps: targets at every step of one, values on another scale, and one priority for all.

>>> import jax.numpy as jnp
>>> r, no = jnp.ones((4, 1)), jnp.zeros((4, 1), bool)
>>> found = n_step_each(r, terminated=no, truncated=no, valid=~no, gamma=0.5, n=2)
>>> found.reward[:, 0].tolist(), found.last[:, 0].tolist()
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
    """The n steps that follow each step: leaves [T, B], `last` counted from the sequence's beginning.

    Steps beyond the end of the sequence are not known: there a target has fewer, and is completed where they end.
    """
    length = len(r_t)
    starts = jnp.arange(length)
    window = starts[:, None] + jnp.arange(n)
    # The last step is the last of every window that reaches it; what a window has after it then counts nothing.
    truncated = truncated.at[-1].set(True)

    def windows(x: jax.Array) -> jax.Array:
        return x[jnp.minimum(window, length - 1)]

    def one(*parts: jax.Array) -> NStep:
        reward, terminated, truncated, valid = parts
        return n_step(reward, terminated=terminated, truncated=truncated, valid=valid, gamma=gamma)

    found = jax.vmap(one)(windows(r_t), windows(terminated), windows(truncated), windows(valid))
    return NStep(found.reward, found.discount, found.last + starts[:, None].astype(found.last.dtype))


def scale(x: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
    """Values as they are learned where returns differ a lot: near to linear at 0, a square root far from it.

    With it no reward has to be clipped (Pohlen et al. 2018, Kapturowski et al. 2019).
    """
    return _signed(jnp.sqrt(jnp.abs(x) + 1.0) - 1.0, x) + EPSILON * x


def unscale(x: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
    """What `scale` made, as it was."""
    root = jnp.sqrt(1.0 + 4.0 * EPSILON * (jnp.abs(x) + 1.0 + EPSILON))
    return _signed(jnp.square((root - 1.0) / (2.0 * EPSILON)) - 1.0, x)


def priority(error: Float[Array, "T B"], valid: Bool[Array, "T B"], mix: float) -> Float[Array, " B"]:
    """How far off a sequence is: between the mean (0) and the maximum (1) of its steps' errors."""
    error = jnp.where(valid, jnp.abs(error), 0.0)
    count = jnp.maximum(jnp.sum(valid.astype(error.dtype), axis=0), 1.0)
    return mix * jnp.max(error, axis=0) + (1.0 - mix) * jnp.sum(error, axis=0) / count


def _signed(size: Float[Array, "*batch"], like: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
    """`size` with the sign of another number."""
    # Not a product: added to a second one, compilers may round either first, and programs would differ in a bit.
    return jnp.where(like < 0.0, -size, size)
