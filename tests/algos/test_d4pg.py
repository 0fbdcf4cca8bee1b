import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax

from tests.algos.replayed import begin, items_of
from weft.algos.d4pg import D4PG
from weft.ops.q_learning import atoms


@pytest.mark.filterwarnings("ignore:Rlax:PendingDeprecationWarning")
def test_the_one_step_loss_equals_rlax(key):
    algo, env, learner = begin(D4PG, key, n_step=1, v_min=-2.0, v_max=2.0)
    items = items_of(env, key)
    next_obs, support = items.final_obs[0], jnp.broadcast_to(atoms(-2.0, 2.0, 51), (16, 51))
    after = learner.target.critics(next_obs, learner.target.actor(next_obs))[0]
    now = learner.net.critics(items.obs[0], items.action[0])[0]
    discount = jnp.where(items.terminated[0], 0.0, algo.gamma)
    expected = jax.vmap(rlax.categorical_td_learning)(support, now, items.reward[0], discount, support, after)
    _, error, _ = algo.gradient(learner, items, jnp.ones(16), key)
    np.testing.assert_allclose(error, expected, rtol=1e-4, atol=1e-4)
