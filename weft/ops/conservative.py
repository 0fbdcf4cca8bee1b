"""Keeping values of what was never done from being overrated.

>>> import jax.numpy as jnp
>>> float(conservative(jnp.array([0.0, 0.0]), jnp.int32(1), jnp.array([False, True])))
0.0

Actions that are numbers cannot all be asked for their values. Some are drawn, and each stands for more of the others
the less likely it was: here for the 4 between -2 and 2, of which all are worth the same.

>>> float(conservative_drawn(jnp.full(10, 3.0), -jnp.log(jnp.full(10, 4.0)), jnp.float32(3.0)) - jnp.log(4.0))
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


def conservative_drawn(
    q: Float[Array, "drawn *batch"], log_density: Float[Array, "drawn *#batch"], done: Float[Array, "*batch"]
) -> Float[Array, "*batch"]:
    """The same for numbers: an integral, from values of drawn actions and how they were drawn (ibid., appendix F)."""
    return jax.nn.logsumexp(q - log_density, axis=0) - jnp.log(q.shape[0]) - done
