"""V-trace: returns of one policy from the experience of another (Espeholt et al. 2018).

Experience of a policy that is not the one being learned is weighted by how much likelier the learned one makes each
action. Such weights have no bound, and products of them vary without end, so V-trace clips them, in two places: `rho`
weighs each step's temporal-difference error and decides whose values are found; `c` decides how far errors reach back,
and so only how fast. Values, ends of episodes and `valid` are as in `weft.ops.returns`.

The paper's recursion, v_s = V_s + rho_s delta_s + gamma c_s (v_{s+1} - V_{s+1}), is a lambda return: of the rewards
r_s + (rho_s - 1) delta_s, with a lambda of its own, c_s, at every step. It is computed as that. So where the two
policies are one, each weight is 1 and the targets are the n-step returns, bit for bit.

>>> import jax.numpy as jnp
>>> r, no, v = jnp.ones((3, 1)), jnp.zeros((3, 1), bool), jnp.full((3, 1), 10.0)
>>> piece = {"terminated": no, "truncated": no, "v_tm1": v, "v_t": v, "gamma": 0.5}
>>> vtrace(jnp.zeros((3, 1)), r, **piece).target[:, 0].tolist()
[3.0, 4.0, 6.0]
>>> vtrace(jnp.full((3, 1), -100.0), r, **piece).target[:, 0].tolist()
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
    """What V-trace makes of a piece of experience."""

    target: Float[Array, "T B"]
    """What the value of each step should be."""
    q: Float[Array, "T B"]
    """What each action turned out to be worth: its reward, and the target of where it led."""
    advantage: Float[Array, "T B"]
    """By how much that is more than the value, times the clipped weight: what a policy gradient takes."""


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
    """Targets and advantages of a policy whose log probabilities are `log_ratio` above those of the one that acted.

    With `lam` below 1 (the paper's remark 2) `q` trusts the value of where a step led as much as the targets do, so
    that where the two policies are one the advantages are those of `gae`.
    """
    weight_t = jnp.exp(log_ratio)
    delta_t = td_error(r_t, terminated=terminated, v_tm1=v_tm1, v_t=v_t, gamma=gamma)
    led = {"terminated": terminated, "truncated": truncated, "valid": valid, "v_t": v_t, "gamma": gamma}
    corrected_t = r_t + (jnp.minimum(weight_t, rho_bar) - 1.0) * delta_t
    target = lambda_returns(corrected_t, **led, lam=lam * jnp.minimum(weight_t, c_bar))
    now_t, decay_t = lambda_steps(r_t, **led, lam=lam)
    q = now_t + decay_t * jnp.concatenate([target[1:], v_t[-1:]])
    return VTrace(target, q, jnp.minimum(weight_t, rho_bar_policy) * (q - v_tm1))
