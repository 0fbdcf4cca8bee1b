"""Losses of policy-gradient methods.

Each term is a `Mean` over the valid rows, so that the same value is minimised and reported as a metric.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from weft.fragments import all_sum
from weft.metrics import Mean


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Targets:
    """The fixed targets of a policy-gradient step; leaves [T, B]."""

    value: Float[Array, "T B"]
    """The targets of the value function."""
    advantage: Float[Array, "T B"]
    valid: Bool[Array, "T B"]
    """The steps to learn from."""


def policy_gradient(
    log_prob: Float[Array, "*batch"], *, advantage: Float[Array, "*batch"], valid: Bool[Array, "*batch"]
) -> Mean:
    """The score-function loss -A log pi(a | s), for fixed advantages A (Williams 1992)."""
    return Mean.of(-log_prob * jax.lax.stop_gradient(advantage), valid)


def clipped_surrogate(
    ratio: Float[Array, "*batch"],
    *,
    advantage: Float[Array, "*batch"],
    clip: Float[Array, ""] | float,
    valid: Bool[Array, "*batch"],
) -> Mean:
    """-L^CLIP: the smaller of the plain and the clipped surrogate objective (Schulman et al. 2017, equation 7)."""
    clipped = jnp.clip(ratio, 1.0 - clip, 1.0 + clip)
    return Mean.of(-jnp.minimum(ratio * advantage, clipped * advantage), valid)


def squared_error(
    value: Float[Array, "*batch"], target: Float[Array, "*batch"], *, valid: Bool[Array, "*batch"]
) -> Mean:
    """Half the squared error between value and target."""
    return Mean.of(0.5 * jnp.square(value - target), valid)


def clipped_squared_error(
    value: Float[Array, "*batch"],
    target: Float[Array, "*batch"],
    *,
    value_old: Float[Array, "*batch"],
    clip: Float[Array, ""] | float,
    valid: Bool[Array, "*batch"],
) -> Mean:
    """Half the larger one of two squared errors: of the value, and of the value clipped to `value_old` +- `clip`."""
    clipped = value_old + jnp.clip(value - value_old, -clip, clip)
    return Mean.of(0.5 * jnp.maximum(jnp.square(value - target), jnp.square(clipped - target)), valid)


def count(valid: Bool[Array, "*batch"], axis: int | tuple[int, ...] | None = None) -> Float[Array, "*rest"]:
    """The number of valid steps over all replicas, at least 1."""
    return jnp.maximum(all_sum(jnp.sum(valid, axis, jnp.float32)), 1.0)


def normalise(
    x: Float[Array, "*batch"], valid: Bool[Array, "*batch"], axis: int | tuple[int, ...] | None = None
) -> Float[Array, "*batch"]:
    """`x` shifted and scaled to zero mean and unit standard deviation over the valid steps of all replicas."""
    mask = valid.astype(x.dtype)
    total, number = all_sum((jnp.sum(x * mask, axis, keepdims=True), jnp.sum(mask, axis, keepdims=True)))
    number = jnp.maximum(number, 1.0)
    centred = x - total / number
    variance = all_sum(jnp.sum(jnp.square(centred) * mask, axis, keepdims=True)) / number
    return centred / (jnp.sqrt(variance) + 1e-8)


def average(mean: Mean) -> Float[Array, ""]:
    """The mean over the rows of all replicas, as the part of it that this replica's rows add; 0 if none was counted.

    Its gradients are parts of the gradient in the same way, and `all_mean` adds them up.
    """
    return mean.total / jnp.maximum(all_sum(mean.count), 1.0)


def means(metrics: dict[str, jax.Array], valid: Bool[Array, "*batch"]) -> dict[str, Mean]:
    """Metrics of every row as means over the valid rows."""
    return {name: Mean.of(values, valid) for name, values in metrics.items()}
