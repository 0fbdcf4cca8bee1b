import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.algos.experience import SMALL, collect, different, learned_net, perturbed
from weft.algos.appo import APPO
from weft.algos.ppo import PPO
from weft.envs import make

PLAIN = {**SMALL, "lr": 1e-3, "lam": 0.95, "epochs": 1, "minibatches": 1}


def begin(algo, key):
    env = make("gymnax:CartPole-v1", algo.num_envs)
    state = algo.init(env, key)
    return state, collect(algo, env, state)


@pytest.mark.parametrize("settings", [{}, {"lam": 0.5}, {"memory": "gru", "memory_size": 8}], ids=str)
def test_on_policy_it_equals_ppo(settings, key):
    ours, theirs = APPO(**PLAIN | settings), PPO(**PLAIN | settings)
    state, trajectory = begin(ours, key)

    def agree(state):
        nets = [learned_net(algo, state, trajectory) for algo in (ours, theirs)]
        return jax.tree.all(jax.tree.map(lambda a, b: np.allclose(a, b, atol=2e-5), *nets))

    assert agree(state) and not agree(perturbed(state, key))


@pytest.mark.parametrize("setting", [{"rho_bar": 0.5}, {"c_bar": 0.5}, {"lam": 0.5}, {"clip": 0.01}], ids=str)
def test_every_setting_changes_what_is_learned(setting, key):
    state, trajectory = begin(APPO(**PLAIN), key)
    state = perturbed(state, key)
    nets = [learned_net(APPO(**PLAIN | settings), state, trajectory) for settings in ({}, setting)]
    assert different(*nets)


def test_advantages_are_not_weighted_by_the_importance_ratio(key):
    """The clipped ratio of the objective is the only weight."""
    algo = APPO(**PLAIN | {"lam": 0.0})
    state, trajectory = begin(algo, key)
    state = perturbed(state, key)
    samples = algo.samples(state.net, trajectory)
    v_t = jnp.where(trajectory.terminated, 0.0, state.net.value(trajectory.final_obs))
    expected = trajectory.reward + algo.gamma * v_t - samples.value
    np.testing.assert_allclose(samples.advantage, expected, atol=1e-5)
