import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax

from weft.ops.returns import discounted_returns, ends_within, gae, lambda_returns, n_step_returns, td_error

T, B = 37, 5
GAMMA = 0.9


@pytest.fixture
def random_trajectory(key):
    """Random rewards, values and ends; a step never both terminates and truncates."""
    keys = jax.random.split(key, 4)
    r_t, v_tm1, final_v = (jax.random.normal(k, (T, B)) for k in keys[:3])
    u = jax.random.uniform(keys[3], (T, B))
    terminated, truncated = u < 0.1, u > 0.9
    # Within an episode v_t is the next v_tm1; at its end, and at the last step, it is another value.
    v_t = jnp.where(terminated | truncated, final_v, jnp.concatenate([v_tm1[1:], final_v[-1:]]))
    return {"r_t": r_t, "terminated": terminated, "truncated": truncated, "v_tm1": v_tm1, "v_t": v_t}


def without(trajectory, *names):
    return {name: x for name, x in trajectory.items() if name not in names}


def no_truncation(trajectory):
    """The trajectory in the form of rlax: one chain of values, and no truncation."""
    chain = jnp.concatenate([trajectory["v_tm1"], trajectory["v_t"][-1:]])
    return {**trajectory, "truncated": jnp.zeros((T, B), bool), "v_t": chain[1:]}, chain


def over_batch(fn):
    return jax.vmap(fn, in_axes=1, out_axes=1)


def slow_lambda_returns(r_t, terminated, truncated, v_t, lam):
    """The definition, in Python loops."""
    out = np.zeros((T, B))
    for b in range(B):
        for t in reversed(range(T)):
            if terminated[t, b]:
                tail = 0.0
            elif truncated[t, b] or t == T - 1:
                tail = v_t[t, b]
            else:
                tail = (1 - lam) * v_t[t, b] + lam * out[t + 1, b]
            out[t, b] = r_t[t, b] + GAMMA * tail
    return out


@pytest.mark.parametrize("lam", [0.0, 0.7, 1.0])
def test_gae_equals_rlax_where_nothing_is_truncated(random_trajectory, lam):
    trajectory, chain = no_truncation(random_trajectory)
    discount = GAMMA * (1.0 - trajectory["terminated"].astype(jnp.float32))
    with jax.numpy_dtype_promotion("standard"):
        expected = over_batch(lambda r, d, v: rlax.truncated_generalized_advantage_estimation(r, d, lam, v))(
            trajectory["r_t"], discount, chain
        )
    np.testing.assert_allclose(gae(**trajectory, gamma=GAMMA, lam=lam), expected, atol=1e-5)


@pytest.mark.parametrize("lam", [0.0, 0.7, 1.0])
def test_lambda_returns_equal_rlax_where_nothing_is_truncated(random_trajectory, lam):
    trajectory, _ = no_truncation(random_trajectory)
    discount = GAMMA * (1.0 - trajectory["terminated"].astype(jnp.float32))
    with jax.numpy_dtype_promotion("standard"):
        expected = over_batch(lambda r, d, v: rlax.lambda_returns(r, d, v, lam))(
            trajectory["r_t"], discount, trajectory["v_t"]
        )
    np.testing.assert_allclose(
        lambda_returns(**without(trajectory, "v_tm1"), gamma=GAMMA, lam=lam), expected, atol=1e-5
    )


@pytest.mark.parametrize("n", [1, 3, T])
def test_n_step_returns_equal_rlax_where_nothing_is_truncated(random_trajectory, n):
    trajectory, _ = no_truncation(random_trajectory)
    discount = GAMMA * (1.0 - trajectory["terminated"].astype(jnp.float32))
    with jax.numpy_dtype_promotion("standard"):
        expected = over_batch(lambda r, d, v: rlax.n_step_bootstrapped_returns(r, d, v, n))(
            trajectory["r_t"], discount, trajectory["v_t"]
        )
    np.testing.assert_allclose(n_step_returns(**without(trajectory, "v_tm1"), gamma=GAMMA, n=n), expected, atol=1e-5)


def test_discounted_returns_and_td_errors_equal_rlax_where_nothing_is_truncated(random_trajectory):
    trajectory, _ = no_truncation(random_trajectory)
    discount = GAMMA * (1.0 - trajectory["terminated"].astype(jnp.float32))
    with jax.numpy_dtype_promotion("standard"):
        returns = over_batch(rlax.discounted_returns)(trajectory["r_t"], discount, trajectory["v_t"])
        errors = jax.vmap(jax.vmap(rlax.td_learning))(
            trajectory["v_tm1"], trajectory["r_t"], discount, trajectory["v_t"]
        )
    np.testing.assert_allclose(discounted_returns(**without(trajectory, "v_tm1"), gamma=GAMMA), returns, atol=1e-5)
    np.testing.assert_allclose(td_error(**without(trajectory, "truncated"), gamma=GAMMA), errors, atol=1e-5)


@pytest.mark.parametrize("lam", [0.0, 0.7, 1.0])
def test_lambda_returns_and_gae_follow_the_definition_with_truncation(random_trajectory, lam):
    ends = jax.tree.map(np.asarray, without(random_trajectory, "v_tm1"))
    expected = slow_lambda_returns(**ends, lam=lam)
    returns = lambda_returns(**without(random_trajectory, "v_tm1"), gamma=GAMMA, lam=lam)
    advantage = gae(**random_trajectory, gamma=GAMMA, lam=lam)
    np.testing.assert_allclose(returns, expected, atol=1e-5)
    # The lambda-return is the value plus the advantage, from another recursion.
    np.testing.assert_allclose(advantage + random_trajectory["v_tm1"], expected, atol=1e-5)


def test_long_n_step_returns_are_discounted_returns(random_trajectory):
    ends = without(random_trajectory, "v_tm1")
    np.testing.assert_allclose(
        n_step_returns(**ends, gamma=GAMMA, n=T), discounted_returns(**ends, gamma=GAMMA), atol=1e-5
    )


@pytest.mark.parametrize("how", ["terminated", "truncated"])
def test_steps_after_the_end_of_an_episode_do_not_affect_steps_before_it(random_trajectory, how):
    cut = 20
    ends = {name: random_trajectory[name].at[cut].set(name == how) for name in ("terminated", "truncated")}
    trajectory = {**random_trajectory, **ends}
    later = {name: trajectory[name].at[cut + 1 :].add(1.0) for name in ("r_t", "v_tm1", "v_t")}
    before, after = (gae(**p, gamma=GAMMA, lam=0.9) for p in (trajectory, {**trajectory, **later}))
    np.testing.assert_array_equal(before[: cut + 1], after[: cut + 1])
    assert (before[cut + 1 :] != after[cut + 1 :]).any()


@pytest.mark.parametrize("returns", [gae, lambda_returns, discounted_returns, n_step_returns])
@pytest.mark.parametrize("truncated", [True, False])
def test_invalid_rows_do_not_affect_steps_before_them(random_trajectory, returns, truncated):
    """After a restart of an environment, the step before bootstraps from its own v_t."""
    cut = 20
    settings = {gae: {"lam": 0.9}, lambda_returns: {"lam": 0.9}, n_step_returns: {"n": 5}, discounted_returns: {}}
    trajectory = random_trajectory if returns is gae else without(random_trajectory, "v_tm1")
    trajectory |= {name: trajectory[name].at[cut - 1].set(False) for name in ("terminated", "truncated")}
    trajectory["truncated"] = trajectory["truncated"].at[cut].set(truncated)
    settings = {"gamma": GAMMA, "valid": jnp.ones((T, B), bool).at[cut].set(False), **settings[returns]}
    garbled = trajectory | {
        name: trajectory[name].at[cut].add(9.0) for name in ("r_t", "v_tm1", "v_t") if name in trajectory
    }
    before, after = (returns(**p, **settings) for p in (trajectory, garbled))
    np.testing.assert_array_equal(before[:cut], after[:cut])
    ended = trajectory | {"truncated": trajectory["truncated"].at[cut - 1].set(True)}
    np.testing.assert_array_equal(before[:cut], returns(**ended, **settings | {"valid": None})[:cut])
    leaking = returns(**garbled, **settings | {"valid": None})
    assert (before[:cut] != leaking[:cut]).any()


def test_truncation_bootstraps_and_termination_does_not(random_trajectory):
    def first_return(how):
        ends = {name: jnp.zeros((T, B), bool).at[0].set(name == how) for name in ("terminated", "truncated")}
        return discounted_returns(**{**without(random_trajectory, "v_tm1"), **ends}, gamma=GAMMA)[0]

    np.testing.assert_allclose(first_return("terminated"), random_trajectory["r_t"][0], rtol=1e-6)
    np.testing.assert_allclose(
        first_return("truncated"), random_trajectory["r_t"][0] + GAMMA * random_trajectory["v_t"][0], rtol=1e-6
    )


def test_ends_within_marks_steps_up_to_the_last_end():
    ended = jnp.array([[0, 0], [1, 0], [0, 0], [1, 0], [0, 0]], bool)
    assert ends_within(ended).tolist() == [[True, False]] * 4 + [[False, False]]
