import jax.numpy as jnp
import numpy as np
import pytest

from tests.algos.replayed import CHOICES, begin, items_of
from weft.algos.discrete_sac import DiscreteSAC


def test_prospects_are_means_over_the_policy(key):
    algo, env, learner = begin(DiscreteSAC, key, CHOICES)
    obs = items_of(env, key, size=20).obs[0]
    policy, q = learner.net.actor(obs), jnp.min(learner.target.critics(obs)[..., 0], axis=0)
    earned, entropy = algo.prospects(learner.net, learner.target, obs, key)
    chance = np.exp(np.stack([policy.log_prob(jnp.full(20, choice)) for choice in range(2)], -1))
    np.testing.assert_allclose(earned, (chance * q).sum(-1), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(entropy, -(chance * np.log(chance)).sum(-1), rtol=1e-4)


def test_critics_learn_of_the_choice_that_was_made(key):
    algo, env, learner = begin(DiscreteSAC, key, CHOICES)
    items = items_of(env, key)
    out = algo.worth(learner.net, items.obs[0], items.action[0])
    both = learner.net.critics(items.obs[0])
    np.testing.assert_array_equal(out, both[:, jnp.arange(16), items.action[0]])


def test_the_entropy_aimed_at_is_a_share_of_the_highest(key):
    algo, _, learner = begin(DiscreteSAC, key, CHOICES, target_entropy=0.5)
    assert algo.entropy_aim(learner.net) == pytest.approx(0.5 * np.log(2))
