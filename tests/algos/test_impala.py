import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.algos.experience import SMALL, collect, different, learned_net, perturbed
from weft.algos.a2c import A2C
from weft.algos.impala import IMPALA
from weft.envs import make

PLAIN = {**SMALL, "optimiser": "adam", "optimiser_epsilon": 1e-5, "lr": 1e-3, "max_grad_norm": 0.5}


def begin(algo, key):
    env = make("gymnax:CartPole-v1", algo.num_envs)
    state = algo.init(env, key)
    return state, collect(algo, env, state)


@pytest.mark.parametrize("settings", [{}, {"lam": 0.8}, {"memory": "gru", "memory_size": 8}], ids=str)
def test_on_policy_it_equals_a2c(settings, key):
    ours, theirs = IMPALA(**PLAIN | settings), A2C(**PLAIN | settings)
    state, trajectory = begin(ours, key)

    def agree(state):
        nets = [learned_net(algo, state, trajectory) for algo in (ours, theirs)]
        return jax.tree.all(jax.tree.map(lambda a, b: np.allclose(a, b, atol=2e-5), *nets))

    assert agree(state) and not agree(perturbed(state, key))


@pytest.mark.parametrize(
    "setting",
    [
        {"rho_bar": 0.5},
        {"c_bar": 0.5},
        {"rho_bar_policy": 0.5},
        {"lam": 0.5},
        {"optimiser_epsilon": 0.1},
        {"normalise_advantage": True},
    ],
    ids=str,
)
def test_every_setting_changes_what_is_learned(setting, key):
    state, trajectory = begin(IMPALA(**PLAIN), key)
    state = perturbed(state, key)
    nets = [learned_net(IMPALA(**PLAIN | settings), state, trajectory) for settings in ({}, setting)]
    assert different(*nets)


def test_actions_that_the_learning_policy_never_takes_have_weight_0(key):
    algo = IMPALA(**PLAIN)
    state, trajectory = begin(algo, key)
    # A uniform policy collected the trajectory; the learning policy always takes the first action.
    net = eqx.tree_at(lambda net: net.head.logits.bias, state.net, jnp.array([200.0, 0.0]))
    targets, never = algo.targets(net, trajectory), trajectory.action == 1
    assert never.any() and not never.all()
    np.testing.assert_array_equal(targets.advantage[never], 0)
    np.testing.assert_allclose(targets.value[never], net.value(trajectory.obs)[never], atol=1e-5)
    assert (targets.advantage[~never] != 0).all()


def test_rmsprop_divides_by_the_decaying_mean_of_squares(key):
    algo = IMPALA(
        **PLAIN | {"optimiser": "rmsprop", "optimiser_epsilon": 0.1, "rmsprop_decay": 0.9, "rmsprop_momentum": 0.5}
    )
    state, _ = begin(algo, key)
    net, opt, square, step = state.net, state.opt, 0.0, 0.0
    for scale in (1e-3, -2e-3):
        grads = jax.tree.map(lambda x, scale=scale: scale * jnp.ones_like(x), net)
        before = net
        net, opt = algo.update(net, opt, grads, jnp.float32(1))
        clipped = scale * min(1.0, 0.5 / float(optax.tree.norm(grads)))
        square = 0.9 * square + 0.1 * clipped**2
        step = clipped / (np.sqrt(square) + 0.1) + 0.5 * step
        change = jax.tree.map(lambda a, b: (a - b) / 1e-3, before, net)
        jax.tree.map(lambda x, step=step: np.testing.assert_allclose(x, step, rtol=1e-2, atol=1e-4), change)
