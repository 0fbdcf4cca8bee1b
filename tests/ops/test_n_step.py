import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax

from weft.ops.n_step import at_step, n_step

B, GAMMA = 64, 0.9


@pytest.fixture
def trajectory(key):
    """Random rewards, terminations, truncations and invalid rows; the step before an invalid row may not have ended."""
    keys = jax.random.split(key, 2)
    r_t = jax.random.normal(keys[0], (5, B))
    u = jax.random.uniform(keys[1], (5, B))
    return {"r_t": r_t, "terminated": u < 0.15, "truncated": u > 0.85, "valid": jnp.abs(u - 0.5) > 0.05}


def reference(r_t, terminated, truncated, valid, b):
    """The definition, for one environment."""
    total, discount = 0.0, 1.0
    for k in range(len(r_t)):
        total, discount = total + discount * r_t[k, b], discount * GAMMA
        cut_off = k + 1 == len(r_t) or not valid[k + 1, b]
        if terminated[k, b] or truncated[k, b] or cut_off:
            return total, 0.0 if terminated[k, b] else discount, k
    raise AssertionError


def test_n_step_equals_the_definition(trajectory):
    n_steps = n_step(**trajectory, gamma=GAMMA)
    arrays = {name: np.asarray(x) for name, x in trajectory.items()}
    expected = [reference(**arrays, b=b) for b in range(B)]
    for got, want in zip((n_steps.reward, n_steps.discount, n_steps.last), zip(*expected, strict=True), strict=True):
        np.testing.assert_allclose(got, np.array(want), rtol=1e-5, atol=1e-6)
    assert {0, 4} <= set(n_steps.last.tolist())


def test_n_step_of_the_first_step_equals_rlax(trajectory, key):
    v_t = jax.random.normal(key, (5, B))
    no = jnp.zeros((5, B), bool)
    n_steps = n_step(trajectory["r_t"], terminated=trajectory["terminated"], truncated=no, valid=~no, gamma=GAMMA)
    discount = GAMMA * (1.0 - trajectory["terminated"].astype(jnp.float32))
    with jax.numpy_dtype_promotion("standard"):
        returns = jax.vmap(lambda r, d, v: rlax.n_step_bootstrapped_returns(r, d, v, 5), 1, 1)
        expected = returns(trajectory["r_t"], discount, v_t)[0]
    np.testing.assert_allclose(n_steps.bootstrap(at_step(v_t, n_steps.last)), expected, rtol=1e-5, atol=1e-6)
