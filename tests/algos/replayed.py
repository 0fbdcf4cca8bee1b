"""What a table gives, made up: for tests of algorithms that learn from replay."""

from dataclasses import replace

import jax
import jax.numpy as jnp

from weft.envs import make
from weft.ops.actions import random_actions
from weft.ops.rollout import Transition
from weft.replay.interface import Batch

SMALL = {"num_envs": 4, "hidden": (8,), "batch_size": 8, "updates": 2, "capacity": 400, "warm_up_steps": 40}
NUMBERS, CHOICES = "gymnax:Pendulum-v1", "gymnax:CartPole-v1"


def begin(kind, key, env=NUMBERS, **settings):
    """An algorithm, what it learns in, and its learner, whose target is another network than its own."""
    algo, world = kind(**SMALL | settings), make(env, SMALL["num_envs"])
    learner = algo.beginner(world, key)
    return algo, world, replace(learner, target=algo.build(world, jax.random.key(9)))


def items_of(env, key, *, steps=1, size=16, reward=None):
    """Random steps that follow each other; some end their episode. `reward` is a function of the actions."""
    key_obs, key_action, key_reward, key_end = jax.random.split(key, 4)
    obs = jax.random.normal(key_obs, (steps + 1, size, *env.observation_space.shape))
    action = random_actions(env.action_space, key_action, (steps, size))
    earned = jax.random.normal(key_reward, (steps, size)) if reward is None else reward(action)
    over = jax.random.uniform(key_end, (steps, size)) < 0.3
    return Transition(obs[:-1], action, (), earned, over, jnp.zeros_like(over), obs[1:], jnp.ones_like(over))


def batch_of(items):
    """Those items as drawn from a table."""
    size = items.reward.shape[1]
    return Batch(items, jnp.arange(size), jnp.full((size,), 1.0 / size), jnp.float32(size))
