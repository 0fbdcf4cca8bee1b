import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax

from weft.metrics import Mean
from weft.ops.distributions import Categorical
from weft.ops.losses import (
    average,
    clipped_squared_error,
    clipped_surrogate,
    normalise,
    policy_gradient,
    squared_error,
)

N = 64


@pytest.fixture
def rows(key):
    keys = jax.random.split(key, 4)
    first, second, third = (jax.random.normal(k, (N,)) for k in keys[:3])
    return first, second, third, jax.random.bernoulli(keys[3], 0.7, (N,))


def test_the_clipped_surrogate_equals_rlax(rows):
    log_ratio, advantage, _, _ = rows
    with jax.numpy_dtype_promotion("standard"):
        expected = rlax.clipped_surrogate_pg_loss(jnp.exp(log_ratio), advantage, 0.2)
    ours = clipped_surrogate(jnp.exp(log_ratio), advantage=advantage, clip=0.2, valid=jnp.ones(N, bool))
    np.testing.assert_allclose(average(ours), expected, rtol=1e-5)


@pytest.mark.filterwarnings("ignore:Rlax softmax:PendingDeprecationWarning")
def test_the_policy_gradient_the_squared_error_and_the_entropy_equal_rlax(rows, key):
    advantage, value, target, valid = rows
    logits, action = jax.random.normal(key, (N, 3)), jnp.arange(N, dtype=jnp.int32) % 3
    weight, policy = valid.astype(jnp.float32), Categorical(logits)
    with jax.numpy_dtype_promotion("standard"):
        # Ours is the mean over the valid rows; that of rlax is a weighted mean over all rows.
        share = valid.mean()
        expected = {
            "policy": rlax.policy_gradient_loss(logits, action, advantage, weight) / share,
            "value": jnp.mean(rlax.l2_loss(value, target) * weight) / share,
            "entropy": -rlax.entropy_loss(logits, weight) / share,
        }
    ours = {
        "policy": policy_gradient(policy.log_prob(action), advantage=advantage, valid=valid),
        "value": squared_error(value, target, valid=valid),
        "entropy": Mean.of(policy.entropy(), valid),
    }
    for name, mean in ours.items():
        np.testing.assert_allclose(average(mean), expected[name], rtol=1e-5, err_msg=name)


@pytest.mark.parametrize(
    "loss",
    [
        lambda x, y, z, valid: policy_gradient(x, advantage=y, valid=valid),
        lambda x, y, z, valid: clipped_surrogate(jnp.exp(x), advantage=y, clip=0.2, valid=valid),
        lambda x, y, z, valid: squared_error(x, y, valid=valid),
        lambda x, y, z, valid: clipped_squared_error(x, y, value_old=z, clip=0.2, valid=valid),
        lambda x, y, z, valid: Mean.of(normalise(x, valid) ** 3, valid),
    ],
)
def test_invalid_rows_do_not_change_the_losses(rows, loss):
    *arrays, valid = rows
    kept = [x[np.asarray(valid)] for x in arrays]
    masked, alone = loss(*arrays, valid), loss(*kept, jnp.ones(len(kept[0]), bool))
    np.testing.assert_allclose(masked.total, alone.total, rtol=1e-4)
    assert masked.count == alone.count


def test_without_valid_rows_loss_and_gradient_are_0(rows):
    x, y, _, _ = rows
    none = jnp.zeros(N, bool)
    gradient = jax.grad(lambda x: average(policy_gradient(x, advantage=normalise(y, none), valid=none)))(x)
    np.testing.assert_array_equal(gradient, 0)


def test_no_gradient_flows_through_the_advantage(rows):
    x, y, _, valid = rows
    gradient = jax.grad(lambda y: average(policy_gradient(x, advantage=y, valid=valid)))(y)
    np.testing.assert_array_equal(gradient, 0)


def test_a_clipped_ratio_has_no_gradient():
    def slope(log_ratio, advantage):
        one = (jnp.array([log_ratio]), jnp.array([advantage]))
        return jax.grad(
            lambda x: average(clipped_surrogate(jnp.exp(x), advantage=one[1], clip=0.2, valid=jnp.ones(1, bool)))
        )(one[0])[0]

    assert slope(0.5, 1.0) == 0 and slope(-0.5, -1.0) == 0
    assert slope(-0.5, 1.0) < 0 < slope(0.5, -1.0)


def test_a_clipped_value_error_is_never_smaller(rows):
    value, target, old, valid = rows
    plain = squared_error(value, target, valid=valid)
    clipped = clipped_squared_error(value, target, value_old=old, clip=0.2, valid=valid)
    wide = clipped_squared_error(value, target, value_old=old, clip=1e3, valid=valid)
    assert clipped.total > plain.total
    np.testing.assert_allclose(wide.total, plain.total, rtol=1e-5)


def test_normalised_rows_have_zero_mean_and_unit_standard_deviation(rows):
    x, _, _, valid = rows
    kept = normalise(5 * x + 3, valid)[np.asarray(valid)]
    np.testing.assert_allclose([kept.mean(), kept.std()], [0, 1], atol=1e-5)
