import jax
import jax.numpy as jnp
import numpy as np
import optax

from weft.ops.conservative import conservative_loss, sampled_conservative_loss


def test_the_conservative_loss_is_the_cross_entropy_of_the_data(key):
    q, action = jax.random.normal(key, (20, 3)), jax.random.randint(key, (20,), 0, 3)
    expected = optax.softmax_cross_entropy_with_integer_labels(q, action)
    np.testing.assert_allclose(conservative_loss(q, action, None), expected, rtol=1e-5, atol=1e-6)


def test_masked_actions_have_no_part_in_the_conservative_loss(key):
    q, action = jax.random.normal(key, (20, 3)), jnp.zeros(20, jnp.int32)
    allowed = jnp.array([True, True, False])
    expected = optax.softmax_cross_entropy_with_integer_labels(q[:, :2], action)
    loss = conservative_loss(q, action, jnp.broadcast_to(allowed, q.shape))
    np.testing.assert_allclose(loss, expected, rtol=1e-5, atol=1e-6)


def test_importance_sampling_estimates_the_integral_over_all_actions(key):
    """Of exp(-a^2 / 2) from -3 to 3, with samples of a uniform and of a narrower normal distribution."""
    key_uniform, key_normal = jax.random.split(key)
    uniform = jax.random.uniform(key_uniform, (20_000,), minval=-3, maxval=3)
    normal = 0.8 * jax.random.normal(key_normal, (20_000,))
    inside = jnp.abs(normal) < 3
    action = jnp.concatenate([uniform, normal])
    q = -jnp.square(action) / 2 + jnp.concatenate([jnp.zeros(20_000), jnp.where(inside, 0.0, -jnp.inf)])
    log_density = jnp.concatenate([jnp.full(20_000, -np.log(6.0)), jax.scipy.stats.norm.logpdf(normal, scale=0.8)])
    expected = np.log(np.sqrt(2 * np.pi) * (1 - 2 * 0.00135)) - 0.5
    np.testing.assert_allclose(sampled_conservative_loss(q, log_density, jnp.float32(0.5)), expected, atol=0.01)
