"""Random walks in pools of the toy environments, and the expected steps of each environment."""

import copy
import functools
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import jax
import numpy as np

from weft.envs.adapters import gymnasium as family
from weft.envs.adapters.gymnasium import GymPoolFactory
from weft.envs.pools.pool import PoolStep

SEEDS = (11, 22, 33)


def make_factory(maker: Any, **options: Any) -> GymPoolFactory:
    """Returns the pool factory of a toy environment."""
    factory = family.make_custom(maker, 1, **options).pool_factory
    assert isinstance(factory, GymPoolFactory)
    return factory


def actions(space: gym.Space, seeds: Sequence[int], length: int) -> list[Any]:
    """Returns the random actions of all rows for every step, counted from 0. They depend only on the row's seed."""
    rows = [_row_actions(space, seed, length) for seed in seeds]
    return [jax.tree.map(lambda *parts: np.stack(parts), *step) for step in zip(*rows, strict=True)]


def walk(pool: Any, space: gym.Space, seeds: Sequence[int], length: int = 23) -> tuple[Any, list[PoolStep]]:
    """Steps a pool with random actions. Returns the first observations and every step."""
    first = pool.reset()
    return first, [pool.step(action, None) for action in actions(space, seeds, length)]


@functools.cache
def play(factory: GymPoolFactory, seeds: Sequence[int] = SEEDS, length: int = 23) -> tuple[Any, list[PoolStep], Any]:
    """Steps a new pool with random actions. Returns the first observations, every step and the episode totals."""
    pool = factory.make_pool(range(len(seeds)), seeds)
    try:
        first, steps = walk(pool, factory.action_space, seeds, length)
        return first, steps, pool.pop_totals()
    finally:
        pool.close()


def step_by_hand(factory: GymPoolFactory, seed: int, length: int) -> list[tuple[Any, float, bool, bool, dict]]:
    """Steps one environment without a pool, resetting it after each end. Returns the results of `step`."""
    env = factory.constructor.factory()()
    env.reset(seed=seed)
    steps = []
    for action in _row_actions(factory.action_space, seed, length):
        stepped = env.step(_native(factory.action_space, action))
        steps.append((copy.deepcopy(stepped[0]), *stepped[1:]))
        if stepped[2] or stepped[3]:
            env.reset()
    env.close()
    return steps


def row_of(step: PoolStep, row: int) -> dict[str, Any]:
    """Returns the fields of one row of a step."""
    return jax.tree.map(lambda array: array[row], dict(vars(step)))


def trees_equal(one: Any, other: Any) -> bool:
    """Returns whether two nested values hold arrays of equal values and dtypes."""
    return jax.tree.all(
        jax.tree.map(lambda a, b: np.array_equal(a, b) and np.asarray(a).dtype == np.asarray(b).dtype, one, other)
    )


def _row_actions(space: gym.Space, seed: int, length: int) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [_draw(space, rng) for _ in range(length)]


def _draw(space: gym.Space, rng: np.random.Generator) -> Any:
    if isinstance(space, gym.spaces.Dict):
        return {name: _draw(part, rng) for name, part in space.spaces.items()}
    if isinstance(space, gym.spaces.Tuple):
        return tuple(_draw(part, rng) for part in space.spaces)
    if isinstance(space, gym.spaces.Discrete):
        return np.int32(rng.integers(space.n))
    if isinstance(space, gym.spaces.MultiDiscrete):
        return rng.integers(space.nvec).astype(np.int32)
    # Some values exceed the bounds: pools must clip.
    return rng.normal(0.0, 1.0, space.shape).astype(np.float32)


def _native(space: gym.Space, action: Any) -> Any:
    """Converts an action counted from 0 to a value of the environment's action space."""
    if isinstance(space, gym.spaces.Dict):
        return {name: _native(part, action[name]) for name, part in space.spaces.items()}
    if isinstance(space, gym.spaces.Tuple):
        return tuple(_native(part, value) for part, value in zip(space.spaces, action, strict=True))
    if isinstance(space, gym.spaces.Discrete):
        return int(action) + int(space.start)
    if isinstance(space, gym.spaces.Box):
        return np.clip(action.astype(space.dtype), space.low, space.high)
    return action.astype(space.dtype)
