"""The conservative loss of CQL: lowers the Q-values of actions that the dataset does not contain.

>>> import jax.numpy as jnp
>>> float(conservative_loss(jnp.array([0.0, 0.0]), jnp.int32(1), jnp.array([False, True])))
0.0

For continuous actions the sum over actions is an integral, estimated from sampled actions by importance sampling. Here
all actions in [-2, 2], an interval of length 4, have the same Q-value.

>>> q, log_density = jnp.full(10, 3.0), -jnp.log(jnp.full(10, 4.0))
>>> float(sampled_conservative_loss(q, log_density, jnp.float32(3.0)) - jnp.log(4.0))
0.0
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from weft.ops.distributions import MASKED_LOGIT


def conservative_loss(
    q: Float[Array, "*batch choices"],
    action: Int[Array, "*batch"],
    allowed: Bool[Array, "*batch choices"] | None,
) -> Float[Array, "*batch"]:
    """log sum_a exp Q(s, a) - Q(s, a_data): the regulariser of CQL(H) (Kumar et al. 2020, equation 4)."""
    masked = q if allowed is None else jnp.where(allowed, q, MASKED_LOGIT)
    return jax.nn.logsumexp(masked, axis=-1) - jnp.take_along_axis(q, action[..., None], axis=-1)[..., 0]


def sampled_conservative_loss(
    q: Float[Array, "samples *batch"], log_density: Float[Array, "samples *#batch"], q_data: Float[Array, "*batch"]
) -> Float[Array, "*batch"]:
    """The same for continuous actions: importance sampling from actions of known density (ibid., appendix F)."""
    return jax.nn.logsumexp(q - log_density, axis=0) - jnp.log(q.shape[0]) - q_data
