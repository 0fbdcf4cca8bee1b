"""Actions that no network chose."""

from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

from weft.envs.spaces import map_space
from weft.errors import WeftError
from weft.ops.distributions import choices


def random_actions(space: gym.Space, key: jax.Array, shape: tuple[int, ...]) -> Any:
    """Actions of a space, each as likely as any other, with axes `shape` in front."""
    parts, structure = jax.tree.flatten(map_space(lambda part: part, space))
    keys = jax.random.split(key, len(parts))
    return structure.unflatten(_random(part, key, shape) for part, key in zip(parts, keys, strict=True))


def _random(space: gym.Space, key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    assert space.shape is not None
    counts = choices(space)
    if counts is not None:
        sizes = np.asarray(counts, np.int32).reshape(space.shape)
        return jax.random.randint(key, (*shape, *space.shape), 0, sizes, jnp.int32)
    assert isinstance(space, gym.spaces.Box)
    if not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
        raise WeftError(f"random actions need bounds, and {space} has none everywhere")
    low, high = (jnp.asarray(bound, jnp.float32) for bound in (space.low, space.high))
    return low + (high - low) * jax.random.uniform(key, (*shape, *space.shape), jnp.float32)
