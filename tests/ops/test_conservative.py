import jax
import jax.numpy as jnp
import numpy as np
import optax

from weft.ops.conservative import conservative


def test_it_is_the_cross_entropy_of_what_was_done(key):
    q, action = jax.random.normal(key, (20, 3)), jax.random.randint(key, (20,), 0, 3)
    expected = optax.softmax_cross_entropy_with_integer_labels(q, action)
    np.testing.assert_allclose(conservative(q, action, None), expected, rtol=1e-5, atol=1e-6)


def test_what_is_not_allowed_is_not_pressed_down(key):
    q, action = jax.random.normal(key, (20, 3)), jnp.zeros(20, jnp.int32)
    allowed = jnp.array([True, True, False])
    expected = optax.softmax_cross_entropy_with_integer_labels(q[:, :2], action)
    found = conservative(q, action, jnp.broadcast_to(allowed, q.shape))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
