import jax.numpy as jnp
import numpy as np
import pytest

from tests.algos.replayed import DISCRETE, begin, items_of
from weft.algos.discrete_sac import DiscreteSAC


def test_soft_q_is_an_expectation_over_the_policy(key):
    algo, env, learner = begin(DiscreteSAC, key, DISCRETE)
    obs = items_of(env, key, size=20).obs[0]
    policy, q = learner.net.actor(obs), jnp.min(learner.target.critics(obs)[..., 0], axis=0)
    expected_q, entropy = algo.soft_q(learner.net, learner.target.critics, obs)
    probability = np.exp(np.stack([policy.log_prob(jnp.full(20, action)) for action in range(2)], -1))
    np.testing.assert_allclose(expected_q, (probability * q).sum(-1), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(entropy, -(probability * np.log(probability)).sum(-1), rtol=1e-4)


def test_the_critic_loss_is_of_the_taken_action(key):
    algo, env, learner = begin(DiscreteSAC, key, DISCRETE)
    items = items_of(env, key)
    q = learner.net.critics(items.obs[0])[:, jnp.arange(16), items.action[0], 0]
    loss = algo.critic_loss(learner.net, learner.net, learner.target, items)
    np.testing.assert_array_equal(loss.q, q.mean(axis=0))


def test_the_target_entropy_is_a_share_of_the_highest(key):
    algo, _, learner = begin(DiscreteSAC, key, DISCRETE, target_entropy=0.5)
    assert algo.entropy_target(learner.net) == pytest.approx(0.5 * np.log(2))
