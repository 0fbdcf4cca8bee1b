"""Losses of policy-gradient methods. Each term is a `Mean` over valid rows: what is minimised is what is reported."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from weft.metrics import Mean


def policy_gradient(
    log_prob: Float[Array, "*batch"], *, advantage: Float[Array, "*batch"], valid: Bool[Array, "*batch"]
) -> Mean:
    """The likelihood-ratio loss (Williams 1992): actions grow likelier by their advantage."""
    return Mean.of(-log_prob * jax.lax.stop_gradient(advantage), valid)


def clipped_surrogate(
    ratio: Float[Array, "*batch"],
    *,
    advantage: Float[Array, "*batch"],
    clip: Float[Array, ""] | float,
    valid: Bool[Array, "*batch"],
) -> Mean:
    """The pessimistic one of the plain and the clipped objective (Schulman et al. 2017, equation 7)."""
    clipped = jnp.clip(ratio, 1.0 - clip, 1.0 + clip)
    return Mean.of(-jnp.minimum(ratio * advantage, clipped * advantage), valid)


def squared_error(
    value: Float[Array, "*batch"], target: Float[Array, "*batch"], *, valid: Bool[Array, "*batch"]
) -> Mean:
    """Half the squared error of a value function."""
    return Mean.of(0.5 * jnp.square(value - target), valid)


def clipped_squared_error(
    value: Float[Array, "*batch"],
    target: Float[Array, "*batch"],
    *,
    value_old: Float[Array, "*batch"],
    clip: Float[Array, ""] | float,
    valid: Bool[Array, "*batch"],
) -> Mean:
    """Half the larger squared error of the value and of the value kept within `clip` of the old one."""
    near = value_old + jnp.clip(value - value_old, -clip, clip)
    return Mean.of(0.5 * jnp.maximum(jnp.square(value - target), jnp.square(near - target)), valid)


def normalise(x: Float[Array, "*batch"], valid: Bool[Array, "*batch"]) -> Float[Array, "*batch"]:
    """Zero mean and unit spread over the valid rows."""
    centred = x - average(Mean.of(x, valid))
    return centred / (jnp.sqrt(average(Mean.of(jnp.square(centred), valid))) + 1e-8)


def average(mean: Mean) -> Float[Array, ""]:
    """The mean as a number; 0 where nothing was counted."""
    return mean.total / jnp.maximum(mean.count, 1.0)
