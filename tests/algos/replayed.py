"""Random items, as if sampled from a replay table, for tests of off-policy algorithms."""

from dataclasses import replace

import jax
import jax.numpy as jnp

from weft.envs import make
from weft.ops.actions import random_actions
from weft.ops.rollout import Transition
from weft.replay.interface import Batch

SMALL = {"num_envs": 4, "hidden": (8,), "batch_size": 8, "updates": 2, "capacity": 400, "warm_up_steps": 40}
CONTINUOUS, DISCRETE = "gymnax:Pendulum-v1", "gymnax:CartPole-v1"


def begin(kind, key, env=CONTINUOUS, **settings):
    """An algorithm, its environment, and a learner state with a target network that differs from its network."""
    algo, world = kind(**SMALL | settings), make(env, SMALL["num_envs"])
    learner = algo.new_learner(world, key)
    return algo, world, replace(learner, target=algo.build(world, jax.random.key(9)))


def items_of(env, key, *, steps=1, size=16, reward=None):
    """Random items of several steps, some of which end their episode. `reward` is a function of the actions."""
    key_obs, key_action, key_reward, key_end = jax.random.split(key, 4)
    obs = jax.random.normal(key_obs, (steps + 1, size, *env.observation_space.shape))
    action = random_actions(env.action_space, key_action, (steps, size))
    rewards = jax.random.normal(key_reward, (steps, size)) if reward is None else reward(action)
    terminated = jax.random.uniform(key_end, (steps, size)) < 0.3
    return Transition(
        obs[:-1], action, (), rewards, terminated, jnp.zeros_like(terminated), obs[1:], jnp.ones_like(terminated)
    )


def batch_of(items):
    """The items as a batch of uniform sampling."""
    size = items.reward.shape[1]
    return Batch(items, jnp.arange(size), jnp.full((size,), 1.0 / size), jnp.float32(size))
