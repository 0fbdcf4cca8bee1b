import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from tests.algos.experience import SMALL, collect, different, learned
from weft.algos.reinforce import Reinforce
from weft.envs import make


def test_only_episodes_that_ended_are_learned_from(key):
    algo, env = Reinforce(**SMALL), make("gymnax:CartPole-v1", SMALL["num_envs"])
    state = algo.init(env, key)
    seen = collect(algo, env, state)
    ends = {"terminated": jnp.zeros_like(seen.terminated).at[20].set(True), "truncated": jnp.zeros_like(seen.truncated)}
    seen = dataclasses.replace(seen, **ends)

    def with_reward(t):
        return learned(algo, state, dataclasses.replace(seen, reward=seen.reward.at[t, 0].add(3.0)))

    assert not different(learned(algo, state, seen), with_reward(21))
    assert different(learned(algo, state, seen), with_reward(20))


def test_a_truncated_return_is_not_completed_by_the_critic(key):
    algo, env = Reinforce(**SMALL), make("gymnax:CartPole-v1", SMALL["num_envs"])
    state = algo.init(env, key)
    seen = collect(algo, env, state)
    truncated = dataclasses.replace(
        seen, terminated=jnp.zeros_like(seen.terminated), truncated=jnp.zeros_like(seen.truncated).at[20].set(True)
    )
    terminated = dataclasses.replace(truncated, terminated=truncated.truncated, truncated=truncated.terminated)
    same = jax.tree.map(np.array_equal, learned(algo, state, truncated), learned(algo, state, terminated))
    assert jax.tree.all(same)
