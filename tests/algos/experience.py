"""A little experience to learn from, for tests of single algorithms."""

import jax
import jax.numpy as jnp
import numpy as np

from weft.ops.rollout import Place, rollout

SMALL = {"num_envs": 4, "horizon": 32}


def collect(algo, env, state):
    """The trajectory that the first iteration learns from."""
    key_act, key_env = jax.random.split(state.key)
    return rollout(
        env,
        lambda obs, memory, noise: algo.act(state.net, obs, memory, noise),
        Place(state.env, state.obs, state.memory),
        noise=algo.noise(env, key_act),
        key=key_env,
        length=algo.horizon,
    )[1]


def learned(algo, state, trajectory):
    return algo.learn(state.net, state.opt, trajectory, jnp.ones(()), state.key)[0]


def different(one, other):
    return not jax.tree.all(jax.tree.map(np.array_equal, one, other))
