import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.algos.replayed import SMALL, begin, items_of
from weft.algos.sac import SAC
from weft.errors import WeftError


def test_targets_are_paid_for_entropy(key):
    algo, env, learner = begin(SAC, key, temperature=0.3)
    obs = items_of(env, key, size=50).obs[0]
    policy = learner.net.actor(obs)
    action, log_prob = policy.sample_and_log_prob(jax.random.normal(key, (50, 1)))
    expected = jnp.min(learner.target.critics(obs, action)[..., 0], axis=0) - 0.3 * log_prob
    after = algo.after(learner.net, learner.target, obs, key)
    np.testing.assert_allclose(after[..., 0], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("target", [-9.0, 9.0])
def test_the_temperature_rises_while_entropy_is_missing(target, key):
    algo, env, learner = begin(SAC, key, target_entropy=target)
    items = items_of(env, key)
    grads, _, metrics = algo.gradient(learner, items, jnp.ones(16), key)
    entropy = metrics["entropy"].total / metrics["entropy"].count
    np.testing.assert_allclose(grads.log_temperature, entropy - algo.entropy_aim(learner.net), rtol=1e-4)
    after = algo.update(learner, grads)
    assert (after.net.log_temperature > learner.net.log_temperature) == (target > 0)


def test_a_temperature_that_is_not_learned_stays(key):
    algo, env, learner = begin(SAC, key, temperature=0.2, learn_temperature=False)
    grads, _, _ = algo.gradient(learner, items_of(env, key), jnp.ones(16), key)
    after = algo.update(learner, grads)
    np.testing.assert_allclose(jnp.exp(after.net.log_temperature), 0.2, rtol=1e-5)


def test_the_entropy_aimed_at_grows_with_the_bounds(key):
    """Those of Pendulum are -2 and 2: the same indecision has the logarithm of 2 more."""
    algo, _, learner = begin(SAC, key)
    assert algo.entropy_aim(learner.net) == pytest.approx(-1.0 + np.log(2.0))


def test_a_temperature_of_nothing_is_refused():
    with pytest.raises(WeftError, match="temperature=0.* must be above 0"):
        SAC(**SMALL, temperature=0.0)
