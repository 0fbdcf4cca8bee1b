"""Q-learning: choosing actions by their Q-values, and categorical distributions over returns on fixed atoms.

>>> import jax.numpy as jnp
>>> support = atoms(-1.0, 1.0, 3)
>>> project(support, jnp.array([[0.0, 0.5, 0.5]]), reward=jnp.array([0.5]), discount=jnp.array([0.0])).tolist()
[[0.0, 0.5, 0.5]]
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from weft.ops.distributions import MASKED_LOGIT


def greedy(q: Float[Array, "*batch choices"], allowed: Bool[Array, "*batch choices"] | None) -> Int[Array, "*batch"]:
    """The action with the highest Q-value among the allowed ones; None allows all."""
    return jnp.argmax(q if allowed is None else jnp.where(allowed, q, MASKED_LOGIT), axis=-1).astype(jnp.int32)


def chosen(x: Float[Array, "*batch choices atoms"], action: Int[Array, "*batch"]) -> Float[Array, "*batch atoms"]:
    """The entries of one action."""
    return jnp.take_along_axis(x, action[..., None, None], axis=-2)[..., 0, :]


def huber(x: Float[Array, "*batch"], limit: float = 1.0) -> Float[Array, "*batch"]:
    """The Huber loss: half the square up to `limit`, linear beyond."""
    near = jnp.minimum(jnp.abs(x), limit)
    return 0.5 * jnp.square(near) + limit * (jnp.abs(x) - near)


def atoms(low: float, high: float, count: int) -> Float[Array, " atoms"]:
    """The support of a categorical return distribution."""
    return jnp.linspace(low, high, count, dtype=jnp.float32)


def expected_return(logits: Float[Array, "*batch atoms"], support: Float[Array, " atoms"]) -> Float[Array, "*batch"]:
    """The mean of a categorical return distribution."""
    return jnp.sum(jax.nn.softmax(logits) * support, axis=-1)


def project(
    support: Float[Array, " atoms"],
    probabilities: Float[Array, "*batch atoms"],
    *,
    reward: Float[Array, "*batch"],
    discount: Float[Array, "*batch"],
) -> Float[Array, "*batch atoms"]:
    """The distribution of reward + discount * return, projected onto the support (Bellemare et al. 2017, equation 7).

    The probability of every shifted atom is divided between its two neighbours, in proportion to their proximity.
    """
    shifted = jnp.clip(reward[..., None] + discount[..., None] * support, support[0], support[-1])
    width = (support[-1] - support[0]) / (len(support) - 1)
    near = jnp.clip(1.0 - jnp.abs(shifted[..., None, :] - support[:, None]) / width, 0.0, 1.0)
    return jnp.sum(near * probabilities[..., None, :], axis=-1)


def cross_entropy(
    logits: Float[Array, "*batch atoms"], probabilities: Float[Array, "*batch atoms"]
) -> Float[Array, "*batch"]:
    """The cross-entropy of the logits' distribution relative to a fixed target distribution."""
    return -jnp.sum(jax.lax.stop_gradient(probabilities) * jax.nn.log_softmax(logits), axis=-1)
