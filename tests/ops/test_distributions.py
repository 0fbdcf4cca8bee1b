import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from weft.errors import WeftError
from weft.ops.distributions import Categorical, DiagonalGaussian, action_size, draw_noise


def test_categorical_follows_the_definition(key):
    logits = 3 * jax.random.normal(key, (6, 4))
    action = jnp.array([0, 1, 2, 3, 0, 1], jnp.int32)
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    entropy = -(probabilities * np.log(probabilities)).sum(axis=-1)
    np.testing.assert_allclose(
        Categorical(logits).log_prob(action), np.log(probabilities)[np.arange(6), action], rtol=1e-5
    )
    np.testing.assert_allclose(Categorical(logits).entropy(), entropy, rtol=1e-5)


def test_gaussian_equals_scipy(key):
    mean, log_std, action = np.asarray(jax.random.normal(key, (3, 6, 2)))
    expected = scipy.stats.norm(mean, np.exp(log_std))
    policy = DiagonalGaussian(jnp.asarray(mean), jnp.asarray(log_std))
    np.testing.assert_allclose(policy.log_prob(jnp.asarray(action)), expected.logpdf(action).sum(axis=-1), rtol=1e-4)
    np.testing.assert_allclose(policy.entropy(), expected.entropy().sum(axis=-1), rtol=1e-4)


def test_categorical_samples_at_its_probabilities(key):
    probabilities = jnp.array([0.1, 0.2, 0.7])
    noise = draw_noise(gym.spaces.Discrete(3), key, (100_000,))
    actions = Categorical(jnp.broadcast_to(jnp.log(probabilities), noise.shape)).sample(noise)
    assert actions.dtype == jnp.int32
    np.testing.assert_allclose(jnp.bincount(actions) / len(actions), probabilities, atol=0.01)


def test_gaussian_samples_with_its_mean_and_spread(key):
    noise = draw_noise(gym.spaces.Box(-1, 1, (2,)), key, (100_000,))
    mean, log_std = jnp.array([1.0, -2.0]), jnp.array([0.0, 1.0])
    samples = DiagonalGaussian(*(jnp.broadcast_to(x, noise.shape) for x in (mean, log_std))).sample(noise)
    np.testing.assert_allclose(samples.mean(axis=0), mean, atol=0.03)
    np.testing.assert_allclose(samples.std(axis=0), jnp.exp(log_std), rtol=0.02)


@pytest.mark.parametrize("space", [gym.spaces.MultiBinary(3), gym.spaces.Box(0, 1, (2, 2))])
def test_other_action_spaces_are_refused(space):
    with pytest.raises(WeftError, match="must be Discrete or a Box of one axis"):
        action_size(space)
