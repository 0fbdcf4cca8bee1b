import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from tests.algos.experience import SMALL, collect, different, learned_net
from weft.algos.reinforce import Reinforce
from weft.envs import make


def test_only_complete_episodes_are_learned_from(key):
    algo, env = Reinforce(**SMALL), make("gymnax:CartPole-v1", SMALL["num_envs"])
    state = algo.init(env, key)
    trajectory = collect(algo, env, state)
    ends = {
        "terminated": jnp.zeros_like(trajectory.terminated).at[20].set(True),
        "truncated": jnp.zeros_like(trajectory.truncated),
    }
    trajectory = dataclasses.replace(trajectory, **ends)

    def with_reward(t):
        return learned_net(algo, state, dataclasses.replace(trajectory, reward=trajectory.reward.at[t, 0].add(3.0)))

    assert not different(learned_net(algo, state, trajectory), with_reward(21))
    assert different(learned_net(algo, state, trajectory), with_reward(20))


def test_a_truncated_return_does_not_bootstrap(key):
    algo, env = Reinforce(**SMALL), make("gymnax:CartPole-v1", SMALL["num_envs"])
    state = algo.init(env, key)
    trajectory = collect(algo, env, state)
    truncated = dataclasses.replace(
        trajectory,
        terminated=jnp.zeros_like(trajectory.terminated),
        truncated=jnp.zeros_like(trajectory.truncated).at[20].set(True),
    )
    terminated = dataclasses.replace(truncated, terminated=truncated.truncated, truncated=truncated.terminated)
    same = jax.tree.map(np.array_equal, learned_net(algo, state, truncated), learned_net(algo, state, terminated))
    assert jax.tree.all(same)
