import jax
import jax.numpy as jnp
import numpy as np
import pytest

from weft.nets.conv import Conv, Impala, Nature


@pytest.mark.parametrize(("kind", "sides", "size"), [(Nature, (36, 40), 512), (Impala, (7, 10), 256)])
def test_leading_axes_do_not_change_the_features(kind, sides, size, key):
    net = kind(sides, 3, key=key)
    images = jax.random.uniform(key, (2, 3, *sides, 3))
    features = net(images)
    assert features.shape == (2, 3, size) and net.size == size and net(images[0, 0]).shape == (size,)
    np.testing.assert_allclose(net(images.reshape(6, *sides, 3)), features.reshape(6, size), rtol=1e-4, atol=1e-5)
    assert all(isinstance(leaf, jax.Array) and leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(net))


@pytest.mark.parametrize(("kind", "weights"), [(Nature, 1_684_128), (Impala, 1_089_232)])
def test_the_networks_have_the_size_in_their_papers(kind, weights):
    """For 84x84 images with four channels. The last layer has 3136 inputs in Nature, and 3872 in IMPALA."""
    net = jax.eval_shape(lambda key: kind((84, 84), 4, key=key), jax.random.key(0))
    assert sum(leaf.size for leaf in jax.tree.leaves(net)) == weights


def test_impala_has_fifteen_convolutions():
    net = jax.eval_shape(lambda key: Impala((84, 84), 4, key=key), jax.random.key(0))
    leaves = jax.tree.leaves(net, is_leaf=lambda x: isinstance(x, Conv))
    assert sum(isinstance(leaf, Conv) for leaf in leaves) == 15


def test_convolutions_have_orthogonal_initial_weights(key):
    weight = Conv(3, 8, size=3, stride=1, padding="SAME", key=key).weight.reshape(-1, 8)
    np.testing.assert_allclose(weight.T @ weight, 2 * jnp.eye(8), atol=1e-5)


@pytest.mark.parametrize(("kind", "sides"), [(Nature, (36, 36)), (Impala, (9, 9))])
def test_every_weight_has_a_gradient(kind, sides, key):
    net = kind(sides, 2, key=key)
    images = jax.random.uniform(key, (8, *sides, 2))
    grads = jax.grad(lambda net: jnp.sum(jnp.square(net(images))))(net)
    assert all(jnp.isfinite(leaf).all() and (jnp.abs(leaf) > 0).any() for leaf in jax.tree.leaves(grads))
