"""Learning what actions are worth: choosing by values, and distributions over returns on fixed atoms.

>>> import jax.numpy as jnp
>>> support = atoms(-1.0, 1.0, 3)
>>> project(support, jnp.array([[0.0, 0.5, 0.5]]), reward=jnp.array([0.5]), discount=jnp.array([0.0])).tolist()
[[0.0, 0.5, 0.5]]
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from weft.ops.distributions import RULED_OUT


def greedy(q: Float[Array, "*batch choices"], allowed: Bool[Array, "*batch choices"] | None) -> Int[Array, "*batch"]:
    """The choice that is worth most, of those that there are."""
    return jnp.argmax(q if allowed is None else jnp.where(allowed, q, RULED_OUT), axis=-1).astype(jnp.int32)


def chosen(x: Float[Array, "*batch choices atoms"], action: Int[Array, "*batch"]) -> Float[Array, "*batch atoms"]:
    """What belongs to one choice."""
    return jnp.take_along_axis(x, action[..., None, None], axis=-2)[..., 0, :]


def huber(x: Float[Array, "*batch"], limit: float = 1.0) -> Float[Array, "*batch"]:
    """Half the square up to the limit, a line beyond it."""
    near = jnp.minimum(jnp.abs(x), limit)
    return 0.5 * jnp.square(near) + limit * (jnp.abs(x) - near)


def atoms(low: float, high: float, count: int) -> Float[Array, " atoms"]:
    """Returns that a distribution is over."""
    return jnp.linspace(low, high, count, dtype=jnp.float32)


def project(
    support: Float[Array, " atoms"],
    probabilities: Float[Array, "*batch atoms"],
    *,
    reward: Float[Array, "*batch"],
    discount: Float[Array, "*batch"],
) -> Float[Array, "*batch atoms"]:
    """The distribution of reward + discount * return, on the same atoms (Bellemare et al. 2017, algorithm 1).

    Every atom's probability goes to its neighbours, to each as much as the atom is near to it.
    """
    moved = jnp.clip(reward[..., None] + discount[..., None] * support, support[0], support[-1])
    width = (support[-1] - support[0]) / (len(support) - 1)
    near = jnp.clip(1.0 - jnp.abs(moved[..., None, :] - support[:, None]) / width, 0.0, 1.0)
    return jnp.sum(near * probabilities[..., None, :], axis=-1)


def cross_entropy(
    logits: Float[Array, "*batch atoms"], probabilities: Float[Array, "*batch atoms"]
) -> Float[Array, "*batch"]:
    """How unlikely the logits' distribution finds the other."""
    return -jnp.sum(jax.lax.stop_gradient(probabilities) * jax.nn.log_softmax(logits), axis=-1)
