import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax

from weft.ops.q_learning import atoms, chosen, cross_entropy, greedy, huber, project

B = 200


def test_the_projection_equals_rlax(key):
    keys = jax.random.split(key, 3)
    support = atoms(-2.0, 3.0, 11)
    probabilities = jax.nn.softmax(jax.random.normal(keys[0], (B, 11)))
    reward, discount = 2 * jax.random.normal(keys[1], (B,)), jax.random.uniform(keys[2], (B,))
    ours = project(support, probabilities, reward=reward, discount=discount)
    moved = reward[:, None] + discount[:, None] * support
    with jax.numpy_dtype_promotion("standard"):
        theirs = jax.vmap(rlax.categorical_l2_project, (0, 0, None))(moved, probabilities, support)
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
    np.testing.assert_allclose(ours.sum(-1), 1.0, rtol=1e-5)


def test_the_projection_keeps_the_mean_of_returns_within_the_support(key):
    support = atoms(-10.0, 10.0, 51)
    probabilities = jax.nn.softmax(jax.random.normal(key, (B, 51)))
    ours = project(support, probabilities, reward=jnp.full(B, 0.7), discount=jnp.full(B, 0.5))
    np.testing.assert_allclose(ours @ support, 0.7 + 0.5 * probabilities @ support, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("limit", [1.0, 0.3])
def test_huber_equals_rlax(key, limit):
    x = 2 * jax.random.normal(key, (B,))
    with jax.numpy_dtype_promotion("standard"):
        np.testing.assert_allclose(huber(x, limit), rlax.huber_loss(x, limit), rtol=1e-6)


def test_greedy_does_not_choose_masked_actions(key):
    keys = jax.random.split(key, 2)
    q, allowed = jax.random.normal(keys[0], (B, 5)), jax.random.bernoulli(keys[1], 0.5, (B, 5)).at[:, 2].set(True)
    best = greedy(q, allowed)
    assert allowed[jnp.arange(B), best].all()
    assert (q[jnp.arange(B), best] == jnp.max(jnp.where(allowed, q, -jnp.inf), axis=-1)).all()
    assert (chosen(q[..., None], best)[:, 0] == q[jnp.arange(B), best]).all()


def test_cross_entropy_is_minimal_at_the_distribution_itself(key):
    logits = jax.random.normal(key, (B, 7))
    own = cross_entropy(logits, jax.nn.softmax(logits))
    assert (own < cross_entropy(jnp.roll(logits, 1, axis=-1), jax.nn.softmax(logits))).all()
