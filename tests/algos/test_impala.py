import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.algos.experience import SMALL, collect, different, learned, moved
from weft.algos.a2c import A2C
from weft.algos.impala import IMPALA
from weft.envs import make

PLAIN = {**SMALL, "optimiser": "adam", "epsilon": 1e-5, "lr": 1e-3, "max_grad_norm": 0.5}


def begin(algo, key):
    env = make("gymnax:CartPole-v1", algo.num_envs)
    state = algo.init(env, key)
    return state, collect(algo, env, state)


@pytest.mark.parametrize("settings", [{}, {"lam": 0.8}, {"memory": "gru", "memory_size": 8}], ids=str)
def test_of_its_own_experience_it_learns_as_a2c_does(settings, key):
    ours, theirs = IMPALA(**PLAIN | settings), A2C(**PLAIN | settings)
    state, seen = begin(ours, key)

    def agree(state):
        pairs = jax.tree.map(
            lambda a, b: np.allclose(a, b, atol=2e-5), *(learned(x, state, seen) for x in (ours, theirs))
        )
        return jax.tree.all(pairs)

    assert agree(state) and not agree(moved(state, key))


@pytest.mark.parametrize(
    "setting",
    [
        {"rho_bar": 0.5},
        {"c_bar": 0.5},
        {"rho_bar_policy": 0.5},
        {"lam": 0.5},
        {"epsilon": 0.1},
        {"normalise_advantage": True},
    ],
    ids=str,
)
def test_every_switch_changes_what_is_learned(setting, key):
    state, seen = begin(IMPALA(**PLAIN), key)
    state = moved(state, key)
    assert different(learned(IMPALA(**PLAIN), state, seen), learned(IMPALA(**PLAIN | setting), state, seen))


def test_what_the_learning_policy_would_not_have_done_weighs_nothing(key):
    algo = IMPALA(**PLAIN)
    state, seen = begin(algo, key)
    # A policy that always takes the first action looks at what an even one did.
    net = eqx.tree_at(lambda net: net.head.logits.bias, state.net, jnp.array([200.0, 0.0]))
    targets, never = algo.targets(net, seen), seen.action == 1
    assert never.any() and not never.all()
    np.testing.assert_array_equal(targets.advantage[never], 0)
    np.testing.assert_allclose(targets.value[never], net.value(seen.obs)[never], atol=1e-5)
    assert (targets.advantage[~never] != 0).all()


def test_rmsprop_divides_by_the_decaying_mean_of_squares(key):
    algo = IMPALA(**PLAIN | {"optimiser": "rmsprop", "epsilon": 0.1, "decay": 0.9, "momentum": 0.5})
    state, _ = begin(algo, key)
    net, opt, square, step = state.net, state.opt, 0.0, 0.0
    for scale in (1e-3, -2e-3):
        grads = jax.tree.map(lambda x, scale=scale: scale * jnp.ones_like(x), net)
        before = net
        net, opt = algo.update(net, opt, grads, jnp.float32(1))
        shortened = scale * min(1.0, 0.5 / float(optax.tree.norm(grads)))
        square = 0.9 * square + 0.1 * shortened**2
        step = shortened / (np.sqrt(square) + 0.1) + 0.5 * step
        change = jax.tree.map(lambda a, b: (a - b) / 1e-3, before, net)
        jax.tree.map(lambda x, step=step: np.testing.assert_allclose(x, step, rtol=1e-2, atol=1e-4), change)
