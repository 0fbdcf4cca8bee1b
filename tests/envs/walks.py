"""Random walks through a pool, and what they must show whatever the pool is made of."""

import copy
import functools
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import jax
import numpy as np

from weft.envs.adapters import gymnasium as family
from weft.envs.adapters.gymnasium import GymGame
from weft.envs.pools.pool import Stepped

SEEDS = (11, 22, 33)


def game(maker: Any, **options: Any) -> GymGame:
    """The game of one of the purpose-made environments."""
    made = family.make_custom(maker, 1, **options).game
    assert isinstance(made, GymGame)
    return made


def actions(space: gym.Space, seeds: Sequence[int], length: int) -> list[Any]:
    """For every step the actions of all rows, counted from 0; a row's depend on its seed only."""
    rows = [_row_actions(space, seed, length) for seed in seeds]
    return [jax.tree.map(lambda *parts: np.stack(parts), *step) for step in zip(*rows, strict=True)]


def walk(pool: Any, space: gym.Space, seeds: Sequence[int], length: int = 23) -> tuple[Any, list[Stepped]]:
    """The first observations, and every step of a random walk."""
    first = pool.reset()
    return first, [pool.step(action, None) for action in actions(space, seeds, length)]


@functools.cache
def played(made: GymGame, seeds: Sequence[int] = SEEDS, length: int = 23) -> tuple[Any, list[Stepped], Any]:
    """A walk through a new pool, and the totals after it."""
    pool = made.pool(range(len(seeds)), seeds)
    try:
        first, steps = walk(pool, made.action_space, seeds, length)
        return first, steps, pool.episodes()
    finally:
        pool.close()


def by_hand(made: GymGame, seed: int, length: int) -> list[tuple[Any, float, bool, bool, dict]]:
    """What one environment of a game says for itself, reset by hand where it ends."""
    env = made.source.factory()()
    env.reset(seed=seed)
    found = []
    for action in _row_actions(made.action_space, seed, length):
        stepped = env.step(_native(made.action_space, action))
        found.append((copy.deepcopy(stepped[0]), *stepped[1:]))
        if stepped[2] or stepped[3]:
            env.reset()
    env.close()
    return found


def row_of(step: Stepped, row: int) -> dict[str, Any]:
    """One row of a step, field by field."""
    return jax.tree.map(lambda array: array[row], dict(vars(step)))


def same(one: Any, other: Any) -> bool:
    """Whether two nested values hold equal arrays of equal types."""
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
    # Beyond the bounds at times: pools must clip.
    return rng.normal(0.0, 1.0, space.shape).astype(np.float32)


def _native(space: gym.Space, action: Any) -> Any:
    """The action as the environment wants it."""
    if isinstance(space, gym.spaces.Dict):
        return {name: _native(part, action[name]) for name, part in space.spaces.items()}
    if isinstance(space, gym.spaces.Tuple):
        return tuple(_native(part, given) for part, given in zip(space.spaces, action, strict=True))
    if isinstance(space, gym.spaces.Discrete):
        return int(action) + int(space.start)
    if isinstance(space, gym.spaces.Box):
        return np.clip(action.astype(space.dtype), space.low, space.high)
    return action.astype(space.dtype)
