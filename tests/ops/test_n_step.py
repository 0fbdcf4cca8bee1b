import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax

from weft.ops.n_step import at_step, n_step

B, GAMMA = 64, 0.9


@pytest.fixture
def piece(key):
    """Rewards, two ways to end, and rows that belong to no episode: each follows a step that may not say so."""
    keys = jax.random.split(key, 2)
    r_t = jax.random.normal(keys[0], (5, B))
    u = jax.random.uniform(keys[1], (5, B))
    return {"r_t": r_t, "terminated": u < 0.15, "truncated": u > 0.85, "valid": jnp.abs(u - 0.5) > 0.05}


def slow(r_t, terminated, truncated, valid, b):
    """The definition, one environment at a time."""
    total, discount = 0.0, 1.0
    for k in range(len(r_t)):
        total, discount = total + discount * r_t[k, b], discount * GAMMA
        over = k + 1 == len(r_t) or not valid[k + 1, b]
        if terminated[k, b] or truncated[k, b] or over:
            return total, 0.0 if terminated[k, b] else discount, k
    raise AssertionError


def test_rewards_up_to_the_end_of_the_episode(piece):
    found = n_step(**piece, gamma=GAMMA)
    arrays = {name: np.asarray(x) for name, x in piece.items()}
    expected = [slow(**arrays, b=b) for b in range(B)]
    for got, want in zip((found.reward, found.discount, found.last), zip(*expected, strict=True), strict=True):
        np.testing.assert_allclose(got, np.array(want), rtol=1e-5, atol=1e-6)
    assert {0, 4} <= set(found.last.tolist())


def test_it_is_rlax_s_n_step_return_of_the_first_step(piece, key):
    v_t = jax.random.normal(key, (5, B))
    no = jnp.zeros((5, B), bool)
    found = n_step(piece["r_t"], terminated=piece["terminated"], truncated=no, valid=~no, gamma=GAMMA)
    discount = GAMMA * (1.0 - piece["terminated"].astype(jnp.float32))
    with jax.numpy_dtype_promotion("standard"):
        returns = jax.vmap(lambda r, d, v: rlax.n_step_bootstrapped_returns(r, d, v, 5), 1, 1)
        expected = returns(piece["r_t"], discount, v_t)[0]
    np.testing.assert_allclose(found.reward + found.discount * at_step(v_t, found.last), expected, rtol=1e-5, atol=1e-6)
