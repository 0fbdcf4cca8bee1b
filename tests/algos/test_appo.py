import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.algos.experience import SMALL, collect, different, learned, moved
from weft.algos.appo import APPO
from weft.algos.ppo import PPO
from weft.envs import make

PLAIN = {**SMALL, "lr": 1e-3, "lam": 0.95, "epochs": 1, "minibatches": 1}


def begin(algo, key):
    env = make("gymnax:CartPole-v1", algo.num_envs)
    state = algo.init(env, key)
    return state, collect(algo, env, state)


@pytest.mark.parametrize("settings", [{}, {"lam": 0.5}, {"memory": "gru", "memory_size": 8}], ids=str)
def test_of_its_own_experience_it_learns_as_ppo_does(settings, key):
    ours, theirs = APPO(**PLAIN | settings), PPO(**PLAIN | settings)
    state, seen = begin(ours, key)

    def agree(state):
        nets = [learned(algo, state, seen) for algo in (ours, theirs)]
        return jax.tree.all(jax.tree.map(lambda a, b: np.allclose(a, b, atol=2e-5), *nets))

    assert agree(state) and not agree(moved(state, key))


@pytest.mark.parametrize("setting", [{"rho_bar": 0.5}, {"c_bar": 0.5}, {"lam": 0.5}, {"clip": 0.01}], ids=str)
def test_every_switch_changes_what_is_learned(setting, key):
    state, seen = begin(APPO(**PLAIN), key)
    state = moved(state, key)
    assert different(learned(APPO(**PLAIN), state, seen), learned(APPO(**PLAIN | setting), state, seen))


def test_no_step_is_weighted_twice(key):
    """The ratio that is clipped weighs a step already: its advantage is what the action got beyond the value."""
    algo = APPO(**PLAIN | {"lam": 0.0})
    state, seen = begin(algo, key)
    state = moved(state, key)
    v_tm1, advantage, _ = algo.estimate(state.net, seen)
    led = jnp.where(seen.terminated, 0.0, state.net.value(seen.final_obs))
    np.testing.assert_allclose(advantage, seen.reward + algo.gamma * led - v_tm1, atol=1e-5)
