import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax

from weft.ops.actor_critic import (
    critic_loss,
    distributional_critic_loss,
    lowest_q,
    sac_policy_loss,
    temperature_loss,
)
from weft.ops.n_step import NStep
from weft.ops.q_learning import atoms, expected_return

SUPPORT = atoms(-2.0, 2.0, 11)


def test_the_lowest_of_scalar_q_values_is_their_minimum(key):
    q = jax.random.normal(key, (3, 20))
    np.testing.assert_array_equal(lowest_q(q[..., None], q)[..., 0], q.min(axis=0))


def test_of_several_distributions_the_one_with_the_lowest_mean_is_selected(key):
    logits = jax.random.normal(key, (3, 10, 11))
    lowest = lowest_q(logits, expected_return(logits, SUPPORT))
    assert lowest.shape == (10, 11)
    means = expected_return(logits, SUPPORT)
    np.testing.assert_allclose(expected_return(lowest, SUPPORT), means.min(axis=0), rtol=1e-5, atol=1e-6)


def test_the_critic_loss_sums_losses_and_averages_errors_over_the_critics(key):
    key_q, key_target = jax.random.split(key)
    q, target = jax.random.normal(key_q, (2, 20)), jax.random.normal(key_target, (20,))
    critic = critic_loss(q, target)
    np.testing.assert_allclose(critic.loss, rlax.l2_loss(q - target).sum(axis=0), rtol=1e-5)
    np.testing.assert_allclose(critic.error, jnp.abs(q - target).mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(critic.q, q.mean(axis=0), rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore:Rlax:PendingDeprecationWarning")
def test_the_distributional_critic_loss_equals_rlax(key):
    keys = jax.random.split(key, 4)
    logits, target_logits = jax.random.normal(keys[0], (2, 20, 11)), jax.random.normal(keys[1], (20, 11))
    n_steps = NStep(jax.random.normal(keys[2], (20,)), jax.random.uniform(keys[3], (20,)), jnp.zeros(20, jnp.int32))
    support = jnp.broadcast_to(SUPPORT, (20, 11))
    expected = [
        jax.vmap(rlax.categorical_td_learning)(support, each, n_steps.reward, n_steps.discount, support, target_logits)
        for each in logits
    ]
    critic = distributional_critic_loss(logits, target_logits, support=SUPPORT, n_steps=n_steps)
    np.testing.assert_allclose(critic.loss, sum(expected), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(critic.error, sum(expected) / 2, rtol=1e-4, atol=1e-4)


def test_the_policy_loss_weights_the_entropy_by_the_temperature():
    loss = sac_policy_loss(jnp.array([1.0]), jnp.array([2.0]), jnp.log(jnp.float32(0.5)))
    np.testing.assert_allclose(loss, [-2.0], rtol=1e-6)


@pytest.mark.parametrize(("entropy", "sign"), [(0.0, -1), (2.0, 1)])
def test_descending_the_temperature_loss_raises_the_temperature_below_the_target_entropy(entropy, sign):
    grad, to_entropy = jax.grad(lambda log_alpha, entropy: temperature_loss(log_alpha, entropy, 1.0), (0, 1))(
        jnp.float32(0.3), jnp.float32(entropy)
    )
    assert jnp.sign(grad) == sign and to_entropy == 0.0
