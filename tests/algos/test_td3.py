import jax
import jax.numpy as jnp
import numpy as np

from tests.algos.replayed import begin, items_of
from weft.algos.td3 import TD3


def same(one, other):
    return jax.tree.all(jax.tree.map(lambda x, y: bool((x == y).all()), one, other))


def test_actor_and_targets_are_updated_every_second_step(key):
    algo, _, learner = begin(TD3, key)
    grads, update = jax.tree.map(jnp.ones_like, learner.net), jax.jit(algo.update)
    for count in range(1, 5):
        before, learner = learner, update(learner, grads)
        assert not same(before.net.critics, learner.net.critics)
        assert same(before.net.actor, learner.net.actor) == same(before.target, learner.target) == (count % 2 == 1)


def test_target_policy_smoothing_adds_clipped_noise_within_the_bounds(key):
    algo, env, learner = begin(TD3, key)
    obs, half_range = items_of(env, key, size=200).obs[0], env.action_space.high
    plain, smoothed = learner.target.actor(obs), algo.target_action(learner.target, obs, key)
    noise = (smoothed - plain) / half_range
    assert abs(noise.std() - algo.target_noise) < 0.05 and np.abs(noise).max() <= algo.target_noise_clip + 1e-6
    assert (jnp.abs(smoothed) <= half_range).all()


def test_the_target_is_the_minimum_over_the_critics(key):
    algo, env, learner = begin(TD3, key)
    items = items_of(env, key)
    next_obs = items.final_obs[0]
    q_t = jnp.minimum(*learner.target.critics(next_obs, algo.target_action(learner.target, next_obs, key))[..., 0])
    y = items.reward[0] + jnp.where(items.terminated[0], 0.0, algo.gamma) * q_t
    q = learner.net.critics(items.obs[0], items.action[0])[..., 0]
    error = algo.critic_loss(learner.net, learner.target, items, key).error
    np.testing.assert_allclose(error, jnp.abs(y - q).mean(axis=0), rtol=1e-4, atol=1e-5)
