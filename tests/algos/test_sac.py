import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.algos.replayed import SMALL, begin, items_of
from weft.algos.sac import SAC
from weft.errors import WeftError


def test_targets_include_the_entropy_bonus(key):
    algo, env, learner = begin(SAC, key, temperature=0.3)
    items = items_of(env, key, size=50)
    next_obs = items.final_obs[0]
    policy = learner.net.actor(next_obs)
    action, log_prob = policy.sample_and_log_prob(jax.random.normal(key, (50, 1)))
    value = jnp.min(learner.target.critics(next_obs, action)[..., 0], axis=0) - 0.3 * log_prob
    y = items.reward[0] + jnp.where(items.terminated[0], 0.0, algo.gamma) * value
    q = learner.net.critics(items.obs[0], items.action[0])[..., 0]
    critic = algo.critic_loss(learner.net, learner.net, learner.target, items, key)
    np.testing.assert_allclose(critic.error, jnp.abs(y - q).mean(axis=0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("target", [-9.0, 9.0])
def test_the_temperature_rises_while_the_entropy_is_below_its_target(target, key):
    algo, env, learner = begin(SAC, key, target_entropy=target)
    items = items_of(env, key)
    grads, _, metrics = algo.gradient(learner, items, jnp.ones(16), key)
    entropy = metrics["entropy"].total / metrics["entropy"].count
    np.testing.assert_allclose(grads.log_temperature, entropy - algo.entropy_target(learner.net), rtol=1e-4)
    after = algo.update(learner, grads)
    assert (after.net.log_temperature > learner.net.log_temperature) == (target > 0)


def test_a_fixed_temperature_does_not_change(key):
    algo, env, learner = begin(SAC, key, temperature=0.2, learn_temperature=False)
    grads, _, _ = algo.gradient(learner, items_of(env, key), jnp.ones(16), key)
    after = algo.update(learner, grads)
    np.testing.assert_allclose(jnp.exp(after.net.log_temperature), 0.2, rtol=1e-5)


def test_the_target_entropy_grows_with_the_bounds(key):
    """Pendulum's bounds are -2 and 2, so the entropy is higher by log 2 than for -1 and 1."""
    algo, _, learner = begin(SAC, key)
    assert algo.entropy_target(learner.net) == pytest.approx(-1.0 + np.log(2.0))


def test_a_temperature_of_0_is_refused():
    with pytest.raises(WeftError, match="temperature=0.* must be above 0"):
        SAC(**SMALL, temperature=0.0)
