"""Returns and advantages over a trajectory, time-major [T, B].

At every step `v_t` is the value of the state that the step led to: of the final observation where an episode ended. A
return bootstraps from `v_t` where the trajectory is cut off or an episode is truncated, and from 0 where it terminates.
Rewards of the next episode never enter. A step before a row that is not `valid` counts as truncated: the environment
was reset there, and the row belongs to no episode.

>>> import jax.numpy as jnp
>>> r, no, v = jnp.ones((3, 1)), jnp.zeros((3, 1), bool), jnp.full((3, 1), 10.0)
>>> discounted_returns(r, terminated=no, truncated=no, v_t=v, gamma=0.5)[:, 0].tolist()
[3.0, 4.0, 6.0]
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

# Recursion steps per loop iteration: on a GPU an iteration costs kernel launches, not arithmetic.
UNROLL = 16


def gae(
    r_t: Float[Array, "T B"],
    *,
    terminated: Bool[Array, "T B"],
    truncated: Bool[Array, "T B"],
    v_tm1: Float[Array, "T B"],
    v_t: Float[Array, "T B"],
    gamma: float,
    lam: float,
    valid: Bool[Array, "T B"] | None = None,
) -> Float[Array, "T B"]:
    """Generalised advantage estimation (Schulman et al. 2016, equation 16), cut at the ends of episodes."""
    truncated = truncated_before_invalid(truncated, valid)
    delta_t = td_error(r_t, terminated=terminated, v_tm1=v_tm1, v_t=v_t, gamma=gamma)
    decay_t = jnp.where(terminated | truncated, 0.0, gamma * lam)
    return _decaying_sum(delta_t, decay_t, jnp.zeros_like(v_t[-1]))


def lambda_returns(
    r_t: Float[Array, "T B"],
    *,
    terminated: Bool[Array, "T B"],
    truncated: Bool[Array, "T B"],
    v_t: Float[Array, "T B"],
    gamma: float,
    lam: Float[Array, "T B"] | float,
    valid: Bool[Array, "T B"] | None = None,
) -> Float[Array, "T B"]:
    """The lambda-return: n-step returns weighted by lam^(n-1) (Sutton and Barto 2018, equation 12.2).

    If `lam` differs between steps, lam^(n-1) is the product over the steps of the longer return.
    """
    ends = {"terminated": terminated, "truncated": truncated, "valid": valid}
    return _decaying_sum(*lambda_steps(r_t, **ends, v_t=v_t, gamma=gamma, lam=lam), v_t[-1])


def lambda_steps(
    r_t: Float[Array, "T B"],
    *,
    terminated: Bool[Array, "T B"],
    truncated: Bool[Array, "T B"],
    v_t: Float[Array, "T B"],
    gamma: float,
    lam: Float[Array, "T B"] | float,
    valid: Bool[Array, "T B"] | None = None,
) -> tuple[Float[Array, "T B"], Float[Array, "T B"]]:
    """The terms x and d of the recursion y_t = x_t + d_t y_{t+1} that the lambda-return solves."""
    truncated = truncated_before_invalid(truncated, valid)
    # At the end of an episode all weight is on the bootstrap value.
    mix_t = jnp.where(terminated | truncated, 0.0, lam)
    return r_t + gamma * jnp.where(terminated, 0.0, (1.0 - mix_t) * v_t), gamma * mix_t


def td_error(
    r_t: Float[Array, "T B"],
    *,
    terminated: Bool[Array, "T B"],
    v_tm1: Float[Array, "T B"],
    v_t: Float[Array, "T B"],
    gamma: float,
) -> Float[Array, "T B"]:
    """The temporal-difference error delta = r + gamma v_t - v_tm1."""
    return r_t + gamma * jnp.where(terminated, 0.0, v_t) - v_tm1


def discounted_returns(
    r_t: Float[Array, "T B"],
    *,
    terminated: Bool[Array, "T B"],
    truncated: Bool[Array, "T B"],
    v_t: Float[Array, "T B"],
    gamma: float,
    valid: Bool[Array, "T B"] | None = None,
) -> Float[Array, "T B"]:
    """Discounted rewards to the end of the episode, or to the end of the trajectory plus the bootstrap value there."""
    ends = {"terminated": terminated, "truncated": truncated, "valid": valid}
    return lambda_returns(r_t, **ends, v_t=v_t, gamma=gamma, lam=1.0)


def n_step_returns(
    r_t: Float[Array, "T B"],
    *,
    terminated: Bool[Array, "T B"],
    truncated: Bool[Array, "T B"],
    v_t: Float[Array, "T B"],
    gamma: float,
    n: int,
    valid: Bool[Array, "T B"] | None = None,
) -> Float[Array, "T B"]:
    """n-step returns: n rewards and a bootstrap value; fewer rewards where the episode or the trajectory ends."""
    truncated = truncated_before_invalid(truncated, valid)
    last = jnp.zeros_like(terminated).at[-1].set(True)
    bootstrap_t = jnp.where(terminated, 0.0, v_t)
    returns = r_t + gamma * bootstrap_t
    for _ in range(n - 1):
        longer = r_t + gamma * jnp.roll(returns, -1, axis=0)
        returns = jnp.where(terminated | truncated | last, r_t + gamma * bootstrap_t, longer)
    return returns


def ends_within(ended: Bool[Array, "T B"]) -> Bool[Array, "T B"]:
    """Whether the episode of each step ends within the trajectory, so that its return is complete."""
    return jax.lax.cummax(ended.astype(jnp.int32), axis=0, reverse=True).astype(bool)


def truncated_before_invalid(truncated: Bool[Array, "T B"], valid: Bool[Array, "T B"] | None) -> Bool[Array, "T B"]:
    """Truncated, also where the next row belongs to no episode."""
    if valid is None:
        return truncated
    return truncated | jnp.concatenate([~valid[1:], jnp.zeros_like(valid[:1])])


def _decaying_sum(
    x_t: Float[Array, "T B"], decay_t: Float[Array, "T B"], last: Float[Array, " B"]
) -> Float[Array, "T B"]:
    """Solves y_t = x_t + decay_t * y_{t+1} backwards from y_T = last."""

    def earlier(y_t: jax.Array, step: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        x_tm1, decay_tm1 = step
        y_tm1 = x_tm1 + decay_tm1 * y_t
        return y_tm1, y_tm1

    return jax.lax.scan(earlier, last, (x_t, decay_t), reverse=True, unroll=UNROLL)[1]
