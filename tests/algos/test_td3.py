import jax
import jax.numpy as jnp
import numpy as np

from tests.algos.replayed import begin, items_of
from weft.algos.ddpg import DDPG
from weft.algos.td3 import TD3


def same(one, other):
    return jax.tree.all(jax.tree.map(lambda x, y: bool((x == y).all()), one, other))


def test_the_policy_and_the_targets_move_every_second_time(key):
    algo, _, learner = begin(TD3, key)
    grads, update = jax.tree.map(jnp.ones_like, learner.net), jax.jit(algo.update)
    for count in range(1, 5):
        before, learner = learner, update(learner, grads)
        assert not same(before.net.critics, learner.net.critics)
        assert same(before.net.actor, learner.net.actor) == same(before.target, learner.target) == (count % 2 == 1)


def test_the_target_policy_is_blurred_a_little(key):
    algo, env, learner = begin(TD3, key)
    obs, reach = items_of(env, key, size=200).obs[0], env.action_space.high
    plain, blurred = DDPG.target_action(algo, learner.target, obs, key), algo.target_action(learner.target, obs, key)
    off = (blurred - plain) / reach
    assert abs(off.std() - algo.blur) < 0.05 and np.abs(off).max() <= algo.blur_limit + 1e-6
    assert (jnp.abs(blurred) <= reach).all()


def test_the_critic_that_expects_less_gives_the_target(key):
    algo, env, learner = begin(TD3, key)
    out = jax.random.normal(key, (2, 50, 1))
    np.testing.assert_array_equal(algo.least(out), jnp.minimum(*out))
    obs = items_of(env, key).obs[0]
    both = learner.target.critics(obs, algo.target_action(learner.target, obs, key))
    after = algo.after(learner.net, learner.target, obs, key)
    np.testing.assert_allclose(after, jnp.minimum(*both), rtol=1e-4, atol=1e-5)
