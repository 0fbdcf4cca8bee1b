"""Losses of actor-critic algorithms with replay: DDPG, TD3, D4PG, SAC and continuous CQL.

Critics are an ensemble: their outputs are [critics, B, atoms], with one atom for a scalar Q-value.

>>> import jax.numpy as jnp
>>> q = jnp.array([[1.0, 5.0], [2.0, 3.0]])
>>> lowest_q(q[..., None], q)[..., 0].tolist()
[1.0, 3.0]
>>> critic_loss(q, target=jnp.array([1.0, 3.0])).loss.tolist()
[0.5, 2.0]
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from weft.ops.n_step import NStep
from weft.ops.q_learning import cross_entropy, expected_return, project


class CriticLoss(NamedTuple):
    """The loss of an ensemble of critics for every item of a batch."""

    loss: Float[Array, " B"]
    """The sum of the critics' losses."""
    error: Float[Array, " B"]
    """The mean of the critics' errors: the items' next priorities."""
    q: Float[Array, " B"]
    """The mean of the critics' Q-values."""


def lowest_q(
    out: Float[Array, "critics *batch atoms"], q: Float[Array, "critics *batch"]
) -> Float[Array, "*batch atoms"]:
    """The critic output with the lowest mean Q (clipped double Q-learning, Fujimoto et al. 2018, equation 10)."""
    lowest = jnp.argmin(q, axis=0)
    return jnp.take_along_axis(out, lowest[None, ..., None], axis=0)[0]


def critic_loss(q: Float[Array, "critics B"], target: Float[Array, " B"]) -> CriticLoss:
    """Half the squared error between every critic's Q-value and the target y."""
    error = target - q
    return CriticLoss(jnp.sum(0.5 * jnp.square(error), axis=0), jnp.mean(jnp.abs(error), axis=0), jnp.mean(q, axis=0))


def distributional_critic_loss(
    logits: Float[Array, "critics B atoms"],
    target_logits: Float[Array, "B atoms"],
    *,
    support: Float[Array, " atoms"],
    n_steps: NStep,
) -> CriticLoss:
    """The cross-entropy between every critic's distribution and the projected n-step target distribution."""
    target = project(support, jax.nn.softmax(target_logits), reward=n_steps.reward, discount=n_steps.discount)
    loss = cross_entropy(logits, target)
    return CriticLoss(jnp.sum(loss, axis=0), jnp.mean(loss, axis=0), jnp.mean(expected_return(logits, support), axis=0))


def sac_policy_loss(
    q: Float[Array, " B"], entropy: Float[Array, " B"], log_temperature: Float[Array, ""]
) -> Float[Array, " B"]:
    """J_pi = alpha log pi - Q, for a fixed temperature alpha (Haarnoja et al. 2018b, equation 7)."""
    return -q - jnp.exp(log_temperature) * entropy


def temperature_loss(
    log_temperature: Float[Array, ""], entropy: Float[Array, " B"], target_entropy: float
) -> Float[Array, " B"]:
    """log alpha (H - H_target): raises the temperature while the entropy is below its target.

    Equation 18 of Haarnoja et al. 2018b with log alpha in place of alpha as the factor, as in the authors' code.
    """
    missing = target_entropy - jax.lax.stop_gradient(entropy)
    return -log_temperature * missing
