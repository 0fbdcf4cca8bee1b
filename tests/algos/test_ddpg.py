import jax
import jax.numpy as jnp
import numpy as np
import rlax

from tests.algos.replayed import begin, items_of
from weft.algos.ddpg import DDPG


def test_the_critic_target_bootstraps_from_the_target_policy(key):
    algo, env, learner = begin(DDPG, key)
    items = items_of(env, key)
    net, target, next_obs = learner.net, learner.target, items.final_obs[0]
    q_t = target.critics(next_obs, target.actor(next_obs))[0, :, 0]
    y = items.reward[0] + jnp.where(items.terminated[0], 0.0, algo.gamma) * q_t
    q = net.critics(items.obs[0], items.action[0])[0, :, 0]
    _, error, metrics = algo.gradient(learner, items, jnp.ones(16), key)
    np.testing.assert_allclose(error, jnp.abs(y - q), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(metrics["loss"].total, jnp.sum(rlax.l2_loss(y - q)), rtol=1e-4)


def test_the_policy_gradient_equals_rlax(key):
    algo, env, learner = begin(DDPG, key)
    items = items_of(env, key)
    obs, critics = items.obs[0], learner.net.critics

    def loss(actor):
        action = actor(obs)
        slope = jax.grad(lambda action: jnp.sum(critics(obs, action)))(action)
        return jnp.mean(jax.vmap(rlax.dpg_loss)(action, slope))

    ours, theirs = algo.gradient(learner, items, jnp.ones(16), key)[0].actor, jax.grad(loss)(learner.net.actor)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-6), ours, theirs)


def test_exploration_noise_stays_within_the_bounds(key):
    algo, env, learner = begin(DDPG, key, exploration_noise=0.1)
    obs, noise = items_of(env, key, size=400).obs[0], jax.random.normal(key, (400, 1))
    action, _, _ = algo.act(learner.net, obs, (), noise)
    np.testing.assert_allclose(action, learner.net.actor(obs) + 0.1 * 2.0 * noise, rtol=1e-4, atol=1e-5)
    clipped, _, _ = algo.act(learner.net, obs, (), 100 * noise)
    assert (clipped.min(), clipped.max()) == (-2.0, 2.0)
