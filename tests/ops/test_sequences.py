import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax

from weft.ops.n_step import at_step, n_step
from weft.ops.sequences import n_step_each, scale, sequence_priority, unscale

T, B, GAMMA = 7, 32, 0.9


@pytest.fixture
def trajectory(key):
    """Random rewards, terminations, truncations and invalid rows."""
    keys = jax.random.split(key, 2)
    u = jax.random.uniform(keys[1], (T, B))
    ends = {"terminated": u < 0.15, "truncated": u > 0.85, "valid": jnp.abs(u - 0.5) > 0.05}
    return {"r_t": jax.random.normal(keys[0], (T, B)), **ends}


@pytest.mark.parametrize("n", [1, 3, T, T + 2])
def test_n_step_each_equals_n_step_of_every_suffix(trajectory, n):
    n_steps = n_step_each(**trajectory, gamma=GAMMA, n=n)
    for t in range(T):
        expected = n_step(**{name: x[t : t + n] for name, x in trajectory.items()}, gamma=GAMMA)
        np.testing.assert_allclose(n_steps.reward[t], expected.reward, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(n_steps.discount[t], expected.discount, rtol=1e-6)
        np.testing.assert_array_equal(n_steps.last[t], expected.last + t)


@pytest.mark.parametrize("n", [1, 3, T])
def test_n_step_each_equals_rlax(trajectory, key, n):
    v_t = jax.random.normal(key, (T, B))
    no = jnp.zeros((T, B), bool)
    n_steps = n_step_each(
        trajectory["r_t"], terminated=trajectory["terminated"], truncated=no, valid=~no, gamma=GAMMA, n=n
    )
    discount = GAMMA * (1.0 - trajectory["terminated"].astype(jnp.float32))
    with jax.numpy_dtype_promotion("standard"):
        returns = jax.vmap(lambda r, d, v: rlax.n_step_bootstrapped_returns(r, d, v, n), 1, 1)
        expected = returns(trajectory["r_t"], discount, v_t)
    value = jax.vmap(at_step, in_axes=(None, 0))(v_t, n_steps.last)
    np.testing.assert_allclose(n_steps.reward + n_steps.discount * value, expected, rtol=1e-5, atol=1e-5)


def test_scale_and_unscale_equal_rlax_and_are_inverses():
    x = jnp.array([-1e4, -3.0, -0.1, 0.0, 1e-3, 1.0, 250.0, 1e5])
    np.testing.assert_allclose(scale(x), rlax.signed_hyperbolic(x, 1e-3), rtol=1e-5)
    np.testing.assert_allclose(unscale(x[1:-1]), rlax.signed_parabolic(x[1:-1], 1e-3), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(unscale(scale(x)), x, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("mix", "expected"), [(1.0, [3.0, 0.0]), (0.0, [2.0, 0.0]), (0.5, [2.5, 0.0])])
def test_a_priority_mixes_the_maximum_and_the_mean_of_the_valid_errors(mix, expected):
    error = jnp.array([[-3.0, 9.0], [1.0, 9.0], [7.0, 9.0]])
    valid = jnp.array([[True, False], [True, False], [False, False]])
    np.testing.assert_allclose(sequence_priority(error, valid, mix), expected)
