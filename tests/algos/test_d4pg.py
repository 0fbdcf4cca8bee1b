import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax

from tests.algos.replayed import begin, items_of
from weft.algos.d4pg import D4PG
from weft.ops.q_learning import atoms


@pytest.mark.filterwarnings("ignore:Rlax:PendingDeprecationWarning")
def test_the_loss_of_one_step_equals_rlax(key):
    algo, env, learner = begin(D4PG, key, n_step=1, v_min=-2.0, v_max=2.0)
    items = items_of(env, key)
    led_to, support = items.final_obs[0], jnp.broadcast_to(atoms(-2.0, 2.0, 51), (16, 51))
    after = learner.target.critics(led_to, learner.target.actor(led_to))[0]
    now = learner.net.critics(items.obs[0], items.action[0])[0]
    discount = jnp.where(items.terminated[0], 0.0, algo.gamma)
    expected = jax.vmap(rlax.categorical_td_learning)(support, now, items.reward[0], discount, support, after)
    _, error, _ = algo.gradient(learner, items, jnp.ones(16), key)
    np.testing.assert_allclose(error, expected, rtol=1e-4, atol=1e-4)


def test_of_several_distributions_the_one_with_the_least_mean_gives_the_target(key):
    algo, _, _ = begin(D4PG, key, v_min=-2.0, v_max=2.0)
    out = jax.random.normal(key, (3, 10, 51))
    least = algo.least(out)
    assert least.shape == (10, 51)
    np.testing.assert_allclose(algo.mean(least), algo.mean(out).min(axis=0), rtol=1e-5, atol=1e-6)
