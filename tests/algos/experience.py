"""Short trajectories of on-policy algorithms, to test what they learn from them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from weft.ops.rollout import RolloutState, rollout

SMALL = {"num_envs": 4, "horizon": 32}


def collect(algo, env, state):
    """The trajectory that the first iteration learns from."""
    key_act, key_env = jax.random.split(state.key)
    return rollout(
        env,
        lambda obs, memory, noise: algo.act(state.net, obs, memory, noise),
        RolloutState(state.env, state.obs, state.memory),
        noise=algo.acting_noise(env, key_act),
        key=key_env,
        length=algo.horizon,
    )[1]


def perturbed(state, key, by=0.3):
    """The state with a changed network, so that trajectories collected before are another policy's."""
    leaves, tree = jax.tree.flatten(state.net)
    keys = jax.random.split(key, len(leaves))
    leaves = [x + by * jax.random.normal(k, x.shape) for x, k in zip(leaves, keys, strict=True)]
    return dataclasses.replace(state, net=jax.tree.unflatten(tree, leaves))


def learned_net(algo, state, trajectory):
    """The network after learning from a trajectory."""
    return algo.learn(state.net, state.opt, trajectory, jnp.ones(()), state.key)[0]


def different(one, other):
    return not jax.tree.all(jax.tree.map(np.array_equal, one, other))
