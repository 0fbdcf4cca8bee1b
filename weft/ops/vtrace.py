"""V-trace: value targets of a policy from trajectories of another, the behaviour policy (Espeholt et al. 2018).

Each step is weighted by the importance ratio pi(a | s) / mu(a | s) of the learning policy pi and the behaviour policy
mu. Products of ratios have a large variance, so V-trace clips them twice: rho, which weighs the temporal-difference
error and determines the fixed point of the values, and c, which determines how far errors propagate back and thereby
the speed of convergence. Values, ends of episodes and `valid` are as in `weft.ops.returns`.

The recursion of remark 1, v_s = V_s + rho_s delta_s + gamma c_s (v_{s+1} - V_{s+1}), is computed as a lambda-return of
the rewards r_s + (rho_s - 1) delta_s, with lambda = c_s at every step. So where both policies are equal, each ratio
is 1 and the targets are the n-step returns, bit for bit.

>>> import jax.numpy as jnp
>>> r, no, v = jnp.ones((3, 1)), jnp.zeros((3, 1), bool), jnp.full((3, 1), 10.0)
>>> steps = {"terminated": no, "truncated": no, "v_tm1": v, "v_t": v, "gamma": 0.5}
>>> vtrace(jnp.zeros((3, 1)), r, **steps).target[:, 0].tolist()
[3.0, 4.0, 6.0]
>>> vtrace(jnp.full((3, 1), -100.0), r, **steps).target[:, 0].tolist()
[10.0, 10.0, 10.0]
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from weft.ops.returns import lambda_returns, lambda_steps, td_error


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class VTrace:
    """V-trace targets and advantages."""

    target: Float[Array, "T B"]
    """v_s: the target of the value function (equation 1)."""
    q: Float[Array, "T B"]
    """r_s + gamma v_{s+1}: the estimate of each action's Q-value."""
    advantage: Float[Array, "T B"]
    """rho_s (q - V_s): the advantage, weighted for the policy gradient (section 4.2)."""


def vtrace(
    log_ratio: Float[Array, "T B"],
    r_t: Float[Array, "T B"],
    *,
    terminated: Bool[Array, "T B"],
    truncated: Bool[Array, "T B"],
    v_tm1: Float[Array, "T B"],
    v_t: Float[Array, "T B"],
    gamma: float,
    lam: float = 1.0,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
    rho_bar_policy: float = 1.0,
    valid: Bool[Array, "T B"] | None = None,
) -> VTrace:
    """V-trace from `log_ratio` = log pi(a | s) - log mu(a | s).

    `lam` is the lambda of remark 2. It also applies to `q`, so that where both policies are equal the advantages are
    those of `gae`.
    """
    ratio_t = jnp.exp(log_ratio)
    delta_t = td_error(r_t, terminated=terminated, v_tm1=v_tm1, v_t=v_t, gamma=gamma)
    steps = {"terminated": terminated, "truncated": truncated, "valid": valid, "v_t": v_t, "gamma": gamma}
    corrected_t = r_t + (jnp.minimum(ratio_t, rho_bar) - 1.0) * delta_t
    target = lambda_returns(corrected_t, **steps, lam=lam * jnp.minimum(ratio_t, c_bar))
    reward_t, decay_t = lambda_steps(r_t, **steps, lam=lam)
    q = reward_t + decay_t * jnp.concatenate([target[1:], v_t[-1:]])
    return VTrace(target, q, jnp.minimum(ratio_t, rho_bar_policy) * (q - v_tm1))
