import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax

from weft.ops.returns import discounted_returns, ends_within, gae, lambda_returns, n_step_returns, td_error

T, B = 37, 5
GAMMA = 0.9


@pytest.fixture
def random_piece(key):
    """Rewards, values before and after each step, and two ways to end: never both at once."""
    keys = jax.random.split(key, 4)
    r_t, v_tm1, final_v = (jax.random.normal(k, (T, B)) for k in keys[:3])
    u = jax.random.uniform(keys[3], (T, B))
    terminated, truncated = u < 0.1, u > 0.9
    # Within an episode a step leads to where the next one starts; at an end, and at the last step, to somewhere else.
    v_t = jnp.where(terminated | truncated, final_v, jnp.concatenate([v_tm1[1:], final_v[-1:]]))
    return {"r_t": r_t, "terminated": terminated, "truncated": truncated, "v_tm1": v_tm1, "v_t": v_t}


def without(piece, *names):
    return {name: x for name, x in piece.items() if name not in names}


def no_truncation(piece):
    """The same piece in the form that rlax knows: values of one chain of states, and ends only by termination."""
    chain = jnp.concatenate([piece["v_tm1"], piece["v_t"][-1:]])
    return {**piece, "truncated": jnp.zeros((T, B), bool), "v_t": chain[1:]}, chain


def over_batch(fn):
    return jax.vmap(fn, in_axes=1, out_axes=1)


def slow_lambda_returns(r_t, terminated, truncated, v_t, lam):
    """The definition, one environment and one step at a time."""
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
def test_gae_equals_rlax_where_nothing_is_truncated(random_piece, lam):
    piece, chain = no_truncation(random_piece)
    discount = GAMMA * (1.0 - piece["terminated"].astype(jnp.float32))
    with jax.numpy_dtype_promotion("standard"):
        expected = over_batch(lambda r, d, v: rlax.truncated_generalized_advantage_estimation(r, d, lam, v))(
            piece["r_t"], discount, chain
        )
    np.testing.assert_allclose(gae(**piece, gamma=GAMMA, lam=lam), expected, atol=1e-5)


@pytest.mark.parametrize("lam", [0.0, 0.7, 1.0])
def test_lambda_returns_equal_rlax_where_nothing_is_truncated(random_piece, lam):
    piece, _ = no_truncation(random_piece)
    discount = GAMMA * (1.0 - piece["terminated"].astype(jnp.float32))
    with jax.numpy_dtype_promotion("standard"):
        expected = over_batch(lambda r, d, v: rlax.lambda_returns(r, d, v, lam))(piece["r_t"], discount, piece["v_t"])
    np.testing.assert_allclose(lambda_returns(**without(piece, "v_tm1"), gamma=GAMMA, lam=lam), expected, atol=1e-5)


@pytest.mark.parametrize("n", [1, 3, T])
def test_n_step_returns_equal_rlax_where_nothing_is_truncated(random_piece, n):
    piece, _ = no_truncation(random_piece)
    discount = GAMMA * (1.0 - piece["terminated"].astype(jnp.float32))
    with jax.numpy_dtype_promotion("standard"):
        expected = over_batch(lambda r, d, v: rlax.n_step_bootstrapped_returns(r, d, v, n))(
            piece["r_t"], discount, piece["v_t"]
        )
    np.testing.assert_allclose(n_step_returns(**without(piece, "v_tm1"), gamma=GAMMA, n=n), expected, atol=1e-5)


def test_discounted_returns_and_td_errors_equal_rlax_where_nothing_is_truncated(random_piece):
    piece, _ = no_truncation(random_piece)
    discount = GAMMA * (1.0 - piece["terminated"].astype(jnp.float32))
    with jax.numpy_dtype_promotion("standard"):
        returns = over_batch(rlax.discounted_returns)(piece["r_t"], discount, piece["v_t"])
        errors = jax.vmap(jax.vmap(rlax.td_learning))(piece["v_tm1"], piece["r_t"], discount, piece["v_t"])
    np.testing.assert_allclose(discounted_returns(**without(piece, "v_tm1"), gamma=GAMMA), returns, atol=1e-5)
    np.testing.assert_allclose(td_error(**without(piece, "truncated"), gamma=GAMMA), errors, atol=1e-5)


@pytest.mark.parametrize("lam", [0.0, 0.7, 1.0])
def test_lambda_returns_and_gae_follow_the_definition_with_truncation(random_piece, lam):
    ends = jax.tree.map(np.asarray, without(random_piece, "v_tm1"))
    expected = slow_lambda_returns(**ends, lam=lam)
    returns = lambda_returns(**without(random_piece, "v_tm1"), gamma=GAMMA, lam=lam)
    advantage = gae(**random_piece, gamma=GAMMA, lam=lam)
    np.testing.assert_allclose(returns, expected, atol=1e-5)
    # The lambda return is the value plus the advantage: two recursions that must agree.
    np.testing.assert_allclose(advantage + random_piece["v_tm1"], expected, atol=1e-5)


def test_long_n_step_returns_are_discounted_returns(random_piece):
    ends = without(random_piece, "v_tm1")
    np.testing.assert_allclose(
        n_step_returns(**ends, gamma=GAMMA, n=T), discounted_returns(**ends, gamma=GAMMA), atol=1e-5
    )


@pytest.mark.parametrize("how", ["terminated", "truncated"])
def test_nothing_after_an_end_reaches_before_it(random_piece, how):
    cut = 20
    ends = {name: random_piece[name].at[cut].set(name == how) for name in ("terminated", "truncated")}
    piece = {**random_piece, **ends}
    later = {name: piece[name].at[cut + 1 :].add(1.0) for name in ("r_t", "v_tm1", "v_t")}
    before, after = (gae(**p, gamma=GAMMA, lam=0.9) for p in (piece, {**piece, **later}))
    np.testing.assert_array_equal(before[: cut + 1], after[: cut + 1])
    assert (before[cut + 1 :] != after[cut + 1 :]).any()


@pytest.mark.parametrize("returns", [gae, lambda_returns, discounted_returns, n_step_returns])
@pytest.mark.parametrize("truncated", [True, False])
def test_nothing_of_a_row_that_is_not_valid_reaches_before_it(random_piece, returns, truncated):
    """As when an environment is started again: the step before is worth what it led to, whatever the row holds."""
    cut = 20
    settings = {gae: {"lam": 0.9}, lambda_returns: {"lam": 0.9}, n_step_returns: {"n": 5}, discounted_returns: {}}
    piece = random_piece if returns is gae else without(random_piece, "v_tm1")
    piece |= {name: piece[name].at[cut - 1].set(False) for name in ("terminated", "truncated")}
    piece["truncated"] = piece["truncated"].at[cut].set(truncated)
    settled = {"gamma": GAMMA, "valid": jnp.ones((T, B), bool).at[cut].set(False), **settings[returns]}
    garbled = piece | {name: piece[name].at[cut].add(9.0) for name in ("r_t", "v_tm1", "v_t") if name in piece}
    before, after = (returns(**p, **settled) for p in (piece, garbled))
    np.testing.assert_array_equal(before[:cut], after[:cut])
    ended = piece | {"truncated": piece["truncated"].at[cut - 1].set(True)}
    np.testing.assert_array_equal(before[:cut], returns(**ended, **settled | {"valid": None})[:cut])
    leaking = returns(**garbled, **settled | {"valid": None})
    assert (before[:cut] != leaking[:cut]).any()


def test_only_truncation_bootstraps_from_where_it_led(random_piece):
    def first_return(how):
        ends = {name: jnp.zeros((T, B), bool).at[0].set(name == how) for name in ("terminated", "truncated")}
        return discounted_returns(**{**without(random_piece, "v_tm1"), **ends}, gamma=GAMMA)[0]

    np.testing.assert_allclose(first_return("terminated"), random_piece["r_t"][0], rtol=1e-6)
    np.testing.assert_allclose(
        first_return("truncated"), random_piece["r_t"][0] + GAMMA * random_piece["v_t"][0], rtol=1e-6
    )


def test_ends_within_marks_steps_up_to_the_last_end():
    ended = jnp.array([[0, 0], [1, 0], [0, 0], [1, 0], [0, 0]], bool)
    assert ends_within(ended).tolist() == [[True, False]] * 4 + [[False, False]]
