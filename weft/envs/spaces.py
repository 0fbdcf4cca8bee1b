"""The shapes and dtypes of the arrays that represent values of a space.

Spaces are Gymnasium's. A value of a Dict space is a dictionary, of a Tuple space a tuple, and of any other space one
array. 64-bit numbers become 32-bit numbers; images stay uint8.

>>> space = gym.spaces.Dict(goal=gym.spaces.Discrete(3), image=gym.spaces.Box(0, 255, (4, 4), np.uint8))
>>> shapes(space, 8)
{'goal': ShapeDtypeStruct(shape=(8,), dtype=int32), 'image': ShapeDtypeStruct(shape=(8, 4, 4), dtype=uint8)}
"""

from collections.abc import Callable
from typing import Any, TypeGuard

import gymnasium as gym
import jax
import numpy as np

from weft.errors import WeftError

MASKED = {"observation", "action_mask"}
NARROW = {"float64": np.float32, "int64": np.int32, "uint64": np.uint32, "float16": np.float32}


def shapes(space: gym.Space, num_envs: int) -> Any:
    """Returns the shapes and dtypes of a batch of `num_envs` values of a space, as a pytree."""
    return map_space(lambda leaf: jax.ShapeDtypeStruct((num_envs, *_shape(leaf)), dtype(leaf)), space)


def dtype(space: gym.Space) -> np.dtype:
    """Returns the dtype of the array for a space that is neither Dict nor Tuple."""
    own = np.dtype(space.dtype) if space.dtype is not None else np.dtype(np.float32)
    return np.dtype(NARROW.get(own.name, own))


def map_space(function: Callable[[gym.Space], Any], space: gym.Space) -> Any:
    """Applies `function` to every leaf of a nested space. The result has the structure of the space's values."""
    if isinstance(space, gym.spaces.Dict):
        return {name: map_space(function, part) for name, part in space.spaces.items()}
    if isinstance(space, gym.spaces.Tuple):
        return tuple(map_space(function, part) for part in space.spaces)
    if isinstance(space, gym.spaces.Box | gym.spaces.Discrete | gym.spaces.MultiDiscrete | gym.spaces.MultiBinary):
        return function(space)
    raise WeftError(
        f"the space {space} is not supported: "
        "it must be Box, Discrete, MultiDiscrete or MultiBinary, or a Dict or Tuple of those"
    )


def is_masked(space: gym.Space) -> TypeGuard[gym.spaces.Dict]:
    """Whether observations of a space include an action mask."""
    return isinstance(space, gym.spaces.Dict) and set(space.spaces) == MASKED


def mask_of(space: gym.Space, obs: Any) -> Any:
    """Returns the action mask in an observation, or None if the space has none."""
    return obs["action_mask"] if is_masked(space) else None


def without_mask(space: gym.Space) -> gym.Space:
    """Returns the observation space without the action mask."""
    return space["observation"] if is_masked(space) else space


def _shape(space: gym.Space) -> tuple[int, ...]:
    assert space.shape is not None
    return space.shape
