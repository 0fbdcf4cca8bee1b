"""Spaces as shapes: what arrays an observation or an action of a space becomes.

Spaces are Gymnasium's. A Dict becomes a dictionary, a Tuple a tuple, and everything else one array. Types are those
that a device computes with: 64-bit numbers become 32-bit ones, images stay bytes.

>>> space = gym.spaces.Dict(goal=gym.spaces.Discrete(3), image=gym.spaces.Box(0, 255, (4, 4), np.uint8))
>>> shapes(space, 8)
{'goal': ShapeDtypeStruct(shape=(8,), dtype=int32), 'image': ShapeDtypeStruct(shape=(8, 4, 4), dtype=uint8)}
"""

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import jax
import numpy as np

from weft.errors import WeftError

NARROW = {"float64": np.float32, "int64": np.int32, "uint64": np.uint32, "float16": np.float32}


def shapes(space: gym.Space, num_envs: int) -> Any:
    """The shapes of `num_envs` elements of a space, as a pytree."""
    return map_space(lambda leaf: jax.ShapeDtypeStruct((num_envs, *_shape(leaf)), dtype(leaf)), space)


def dtype(space: gym.Space) -> np.dtype:
    """The type of an array that holds elements of a space which is neither Dict nor Tuple."""
    given = np.dtype(space.dtype) if space.dtype is not None else np.dtype(np.float32)
    return np.dtype(NARROW.get(given.name, given))


def map_space(function: Callable[[gym.Space], Any], space: gym.Space) -> Any:
    """`function` of every part of a nested space, in the structure that its elements have."""
    if isinstance(space, gym.spaces.Dict):
        return {name: map_space(function, part) for name, part in space.spaces.items()}
    if isinstance(space, gym.spaces.Tuple):
        return tuple(map_space(function, part) for part in space.spaces)
    if isinstance(space, gym.spaces.Box | gym.spaces.Discrete | gym.spaces.MultiDiscrete | gym.spaces.MultiBinary):
        return function(space)
    raise WeftError(
        f"no arrays for a space {space}: "
        "it must be Box, Discrete, MultiDiscrete or MultiBinary, or a Dict or Tuple of those"
    )


def _shape(space: gym.Space) -> tuple[int, ...]:
    assert space.shape is not None
    return space.shape
