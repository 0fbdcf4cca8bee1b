import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax
from hypothesis import given
from hypothesis import strategies as st

from weft.ops.returns import discounted_returns, gae, lambda_returns
from weft.ops.vtrace import vtrace

B = 3
# Shorter than, equal to and longer than UNROLL.
LENGTHS = (1, 7, 16, 40)

# Compiled once for each length: settings are traced arguments.
compiled, compiled_gae = jax.jit(vtrace), jax.jit(gae)
compiled_lambda_returns, compiled_discounted_returns = jax.jit(lambda_returns), jax.jit(discounted_returns)


@st.composite
def trajectories(draw, truncation=True, invalid=True):
    """Trajectories with terminations, truncations, and invalid rows of restarted environments."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape = (draw(st.sampled_from(LENGTHS)), B)
    u, often = rng.random(shape), draw(st.sampled_from([0.0, 0.1, 0.4]))
    terminated, truncated = u < often, (u > 1 - often) & truncation
    valid = (rng.random(shape) >= often / 2) | (not invalid)
    cut = terminated | truncated | ~np.concatenate([valid[1:], np.ones((1, B), bool)])
    v_tm1, v_final, r_t = rng.normal(size=(3, *shape)).astype(np.float32)
    # Within an episode v_t is the next v_tm1; at its end, and at the last step, it is another value.
    v_t = np.where(cut & truncation, v_final, np.concatenate([v_tm1[1:], v_final[-1:]]))
    ends = {"terminated": terminated, "truncated": truncated, "valid": valid}
    return {"r_t": r_t, **ends, "v_tm1": v_tm1, "v_t": v_t, "gamma": draw(st.sampled_from([0.5, 0.9, 0.99, 1.0]))}


@st.composite
def log_ratios(draw, trajectory):
    """Log importance ratios of very different sizes."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return (draw(st.sampled_from([0.1, 1.0, 5.0])) * rng.normal(size=trajectory["r_t"].shape)).astype(np.float32)


LAMBDAS = st.sampled_from([0.0, 0.5, 0.95, 1.0])
LIMITS = st.sampled_from([0.3, 1.0, 2.0, 100.0])


def slow_vtrace(log_ratio, r_t, *, terminated, truncated, valid, v_tm1, v_t, gamma, lam, rho_bar, c_bar):
    """Equation 1 of the paper, as a sum over the later steps of the episode; and q."""
    rho, c = np.minimum(rho_bar, np.exp(log_ratio)), lam * np.minimum(c_bar, np.exp(log_ratio))
    delta = r_t + gamma * np.where(terminated, 0, v_t) - v_tm1
    length = len(r_t)
    target, q = np.zeros((2, length, B))
    for b in range(B):
        for s in reversed(range(length)):
            target[s, b], product = v_tm1[s, b], 1.0
            for t in range(s, length):
                target[s, b] += gamma ** (t - s) * product * rho[t, b] * delta[t, b]
                product *= c[t, b]
                if terminated[t, b] or truncated[t, b] or (t + 1 < length and not valid[t + 1, b]):
                    break
            goes_on = s + 1 < length and valid[s + 1, b] and not truncated[s, b]
            led = (1 - lam) * v_t[s, b] + lam * target[s + 1, b] if goes_on else v_t[s, b]
            q[s, b] = r_t[s, b] + gamma * (0 if terminated[s, b] else led)
    return target, q


@jax.jit
def reference(columns, lam, rho_bar, rho_bar_policy):
    """rlax: the errors, and all outputs."""

    def column(*given):
        limits = {"clip_rho_threshold": rho_bar, "clip_pg_rho_threshold": rho_bar_policy}
        both = rlax.vtrace_td_error_and_advantage(*given, lambda_=lam, **limits)
        return rlax.vtrace(*given, lambda_=lam, clip_rho_threshold=rho_bar), both

    return jax.vmap(column, in_axes=1, out_axes=1)(*columns)


def bits(x):
    return np.asarray(x).view(np.int32)


@given(st.data(), trajectories(truncation=False, invalid=False), LAMBDAS, LIMITS, LIMITS)
def test_vtrace_equals_rlax_where_nothing_is_truncated(data, trajectory, lam, rho_bar, rho_bar_policy):
    log_ratio = data.draw(log_ratios(trajectory))
    ours = compiled(log_ratio, **trajectory, lam=lam, rho_bar=rho_bar, rho_bar_policy=rho_bar_policy)
    discount = (trajectory["gamma"] * ~trajectory["terminated"]).astype(np.float32)

    columns = trajectory["v_tm1"], trajectory["v_t"], trajectory["r_t"], discount, np.exp(log_ratio)
    with jax.numpy_dtype_promotion("standard"):
        errors, both = reference(columns, lam, rho_bar, rho_bar_policy)
    # Errors may be a hundred times the values, so the tolerance is relative to hundreds.
    near = {"rtol": 1e-4, "atol": 1e-4 * max(1, rho_bar, rho_bar_policy)}
    np.testing.assert_allclose(ours.target - trajectory["v_tm1"], errors, **near)
    np.testing.assert_allclose(ours.target - trajectory["v_tm1"], both.errors, **near)
    np.testing.assert_allclose(ours.q, both.q_estimate, **near)
    np.testing.assert_allclose(ours.advantage, both.pg_advantage, **near)


@given(st.data(), trajectories(), LAMBDAS, LIMITS, LIMITS, LIMITS)
def test_vtrace_equals_equation_1_with_truncations_and_invalid_rows(
    data, trajectory, lam, rho_bar, c_bar, rho_bar_policy
):
    log_ratio = data.draw(log_ratios(trajectory))
    limits = {"lam": lam, "rho_bar": rho_bar, "c_bar": c_bar}
    ours = compiled(log_ratio, **trajectory, **limits, rho_bar_policy=rho_bar_policy)
    exact = {name: np.asarray(x, np.float64) for name, x in trajectory.items() if name in ("r_t", "v_tm1", "v_t")}
    target, q = slow_vtrace(log_ratio.astype(np.float64), **trajectory | exact, **limits)
    advantage = np.minimum(rho_bar_policy, np.exp(log_ratio)) * (q - trajectory["v_tm1"])
    for name, expected in {"target": target, "q": q, "advantage": advantage}.items():
        found, scale = np.asarray(getattr(ours, name)), 1 + np.abs(expected[trajectory["valid"]]).max(initial=0)
        np.testing.assert_allclose(
            found[trajectory["valid"]], expected[trajectory["valid"]], rtol=1e-4, atol=1e-4 * scale
        )


@given(trajectories(), LAMBDAS, st.sampled_from([1.0, 2.0, np.inf]))
def test_on_policy_vtrace_is_the_n_step_return_bit_for_bit(trajectory, lam, limit):
    arguments = {name: x for name, x in trajectory.items() if name != "v_tm1"}
    limits = {"rho_bar": limit, "c_bar": limit, "rho_bar_policy": limit}
    log_ratio = np.zeros_like(trajectory["r_t"])
    ours = compiled(log_ratio, **trajectory, lam=lam, **limits)
    np.testing.assert_array_equal(bits(ours.target), bits(compiled_lambda_returns(**arguments, lam=lam)))
    np.testing.assert_array_equal(bits(ours.q), bits(ours.target))
    np.testing.assert_allclose(ours.advantage, compiled_gae(**trajectory, lam=lam), rtol=1e-4, atol=1e-4)
    whole = compiled(log_ratio, **trajectory, lam=1.0, **limits)
    np.testing.assert_array_equal(bits(whole.target), bits(compiled_discounted_returns(**arguments)))


@given(st.data(), trajectories(), LAMBDAS)
def test_invalid_rows_do_not_affect_other_rows(data, trajectory, lam):
    log_ratio = data.draw(log_ratios(trajectory))
    none = ~trajectory["valid"]
    garbled = trajectory | {name: np.where(none, np.float32(9), trajectory[name]) for name in ("r_t", "v_tm1", "v_t")}
    before = compiled(log_ratio, **trajectory, lam=lam)
    after = compiled(np.where(none, np.float32(2), log_ratio), **garbled, lam=lam)
    for name in ("target", "q", "advantage"):
        one, other = (np.where(none, 0, getattr(found, name)) for found in (before, after))
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(("rho_bar", "learned"), [(np.inf, (0.2, 0.8)), (1.0, (0.2 / 0.7, 0.5 / 0.7))])
def test_values_converge_to_those_of_the_clipped_policy(rho_bar, learned):
    """With a limit, the fixed point is the value of a policy between mu and pi (equation 3 of the paper)."""
    acted, learning, reward = np.float32([[0.5, 0.5]]), np.float32([[0.2, 0.8]]), jnp.array([[1.0, 3.0]])
    value = jnp.full((1, 2), np.dot(learned, [1.0, 3.0]), jnp.float32)
    ends = {"terminated": jnp.ones((1, 2), bool), "truncated": jnp.zeros((1, 2), bool)}
    found = vtrace(jnp.log(learning / acted), reward, **ends, v_tm1=value, v_t=value, gamma=0.9, rho_bar=rho_bar)
    np.testing.assert_allclose(np.sum(acted * found.target), value[0, 0], rtol=1e-6)
