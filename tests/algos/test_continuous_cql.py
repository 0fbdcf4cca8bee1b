from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.algos.replayed import CONTINUOUS, DISCRETE, items_of
from weft.algos.continuous_cql import ContinuousCQL
from weft.algos.cql import CQL
from weft.algos.sac import SAC
from weft.envs import make
from weft.errors import WeftError

SMALL = {"num_envs": 4, "hidden": (8,), "batch_size": 8, "updates": 2, "dataset": "none"}


@pytest.fixture
def env():
    return make(CONTINUOUS, 4)


def begin(env, key, **settings):
    algo = ContinuousCQL(**SMALL | settings)
    return algo, algo.new_learner(env, key)


def test_the_conservative_loss_equals_a_direct_computation(env, key):
    algo, learner = begin(env, key, action_samples=3)
    net, items = learner.net, items_of(env, key)
    action, log_density = algo.sample_actions(net, items, key)
    assert action.shape == (9, 16, 1) and log_density.shape == (9, 16)
    expected = np.zeros(16)
    for row in range(16):
        densities = [np.full(3, 0.25)]
        for at, obs in enumerate((items.obs[0, row], items.final_obs[0, row]), 1):
            densities.append(np.exp(net.actor(obs).log_prob(action[3 * at : 3 * at + 3, row])))
        for critic in range(2):
            at = [net.critics(items.obs[0, row], each)[critic, 0] for each in (*action[:, row], items.action[0, row])]
            q = np.asarray(at, np.float64)
            expected[row] += np.log(np.mean(np.exp(q[:-1]) / np.concatenate(densities))) - q[-1]
    np.testing.assert_allclose(algo.conservative_loss(net, net, items, key), expected, rtol=1e-3, atol=1e-4)


def test_the_sampled_conservative_loss_converges_to_the_integral(env, key):
    """To the log of the integral of exp Q over all actions, from -2 to 2."""
    algo, learner = begin(env, key, action_samples=4000)
    items = items_of(env, key, size=5)
    grid = jnp.broadcast_to(jnp.linspace(-2, 2, 2001)[:, None, None], (2001, 5, 1))
    q = jax.vmap(lambda action: learner.net.critics(items.obs[0], action)[..., 0])(grid)
    integral = jnp.log(jnp.trapezoid(jnp.exp(q), dx=4 / 2000, axis=0))
    expected = jnp.sum(integral - learner.net.critics(items.obs[0], items.action[0])[..., 0], axis=0)
    np.testing.assert_allclose(algo.conservative_loss(learner.net, learner.net, items, key), expected, atol=0.1)


def test_the_conservative_loss_lowers_q_of_other_actions_and_has_gradients_for_the_critics_only(env, key):
    algo, learner = begin(env, key, hidden=(32,))
    items = items_of(env, key, size=64, reward=lambda action: jnp.zeros(action.shape[:2]))
    # The data always pushes to the right.
    items = replace(items, action=jnp.full_like(items.action, 1.5))

    def advantage_of_right(net):
        right, left = (net.critics(items.obs[0], at * items.action[0]).mean() for at in (1.0, -1.0))
        return float(right - left)

    def descend(net, key):
        grads = jax.grad(lambda net: algo.conservative_loss(net, learner.net, items, key).mean())(net)
        return jax.tree.map(lambda x, grad: x - 0.05 * grad, net, grads), grads

    net, grads = jax.lax.scan(descend, learner.net, jax.random.split(key, 50))
    assert all((leaf == 0).all() for leaf in jax.tree.leaves((grads.actor, grads.log_temperature)))
    assert advantage_of_right(net) > advantage_of_right(learner.net) + 0.5


def test_without_the_conservative_loss_it_is_sac_without_the_entropy_bonus_in_targets(env, key):
    items, weight = items_of(env, key), jnp.ones(16)
    algo, learner = begin(env, key, alpha=0.0, temperature=1e-6)
    sac = SAC(num_envs=4, hidden=(8,))
    ours = algo.gradient(learner, items, weight, key)[0]
    theirs = sac.gradient(learner, items, weight, jax.random.split(key)[0])[0]
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), ours, theirs)


@pytest.mark.parametrize(
    ("kind", "env", "hint"), [(ContinuousCQL, DISCRETE, "offline cql"), (CQL, CONTINUOUS, "offline continuous_cql")]
)
def test_an_unsupported_action_space_is_refused(kind, env, hint, key):
    with pytest.raises(WeftError, match=hint):
        kind(**SMALL).new_learner(make(env, 4), key)


@pytest.mark.parametrize(("settings", "message"), [({"temperature": 0.0}, "above 0"), ({"prioritised": True}, "alike")])
def test_invalid_settings_are_refused(settings, message):
    with pytest.raises(WeftError, match=message):
        ContinuousCQL(**SMALL, **settings)
