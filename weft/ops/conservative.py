"""Keeping values of what was never done from being overrated.

>>> import jax.numpy as jnp
>>> float(conservative(jnp.array([0.0, 0.0]), jnp.int32(1), jnp.array([False, True])))
0.0
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from weft.ops.distributions import RULED_OUT


def conservative(
    q: Float[Array, "*batch choices"],
    action: Int[Array, "*batch"],
    allowed: Bool[Array, "*batch choices"] | None,
) -> Float[Array, "*batch"]:
    """How much more the softly best choice is worth than the one that was made (Kumar et al. 2020, equation 4)."""
    open_to = q if allowed is None else jnp.where(allowed, q, RULED_OUT)
    return jax.nn.logsumexp(open_to, axis=-1) - jnp.take_along_axis(q, action[..., None], axis=-1)[..., 0]
