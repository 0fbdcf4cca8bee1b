import jax
import jax.numpy as jnp
import numpy as np
import rlax

from tests.algos.replayed import begin, items_of
from weft.algos.ddpg import DDPG


def test_the_critic_learns_from_one_step_of_the_target_policy(key):
    algo, env, learner = begin(DDPG, key)
    items = items_of(env, key)
    net, target, led_to = learner.net, learner.target, items.final_obs[0]
    after = target.critics(led_to, target.actor(led_to))[0, :, 0]
    goal = items.reward[0] + jnp.where(items.terminated[0], 0.0, algo.gamma) * after
    now = net.critics(items.obs[0], items.action[0])[0, :, 0]
    _, error, metrics = algo.gradient(learner, items, jnp.ones(16), key)
    np.testing.assert_allclose(error, jnp.abs(goal - now), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(metrics["loss"].total, jnp.sum(rlax.l2_loss(goal - now)), rtol=1e-4)


def test_the_policy_s_gradient_equals_rlax(key):
    algo, env, learner = begin(DDPG, key)
    items = items_of(env, key)
    obs, critics = items.obs[0], learner.net.critics

    def loss(actor):
        action = actor(obs)
        slope = jax.grad(lambda action: jnp.sum(critics(obs, action)))(action)
        return jnp.mean(jax.vmap(rlax.dpg_loss)(action, slope))

    ours, theirs = algo.gradient(learner, items, jnp.ones(16), key)[0].actor, jax.grad(loss)(learner.net.actor)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-6), ours, theirs)


def test_exploration_is_noise_within_the_bounds(key):
    algo, env, learner = begin(DDPG, key, exploration=0.1)
    obs, noise = items_of(env, key, size=400).obs[0], jax.random.normal(key, (400, 1))
    action, _, _ = algo.act(learner.net, obs, (), noise)
    np.testing.assert_allclose(action, learner.net.actor(obs) + 0.1 * 2.0 * noise, rtol=1e-4, atol=1e-5)
    wild, _, _ = algo.act(learner.net, obs, (), 100 * noise)
    assert (wild.min(), wild.max()) == (-2.0, 2.0)
