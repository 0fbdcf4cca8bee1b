"""Converts between nested values of a space and flat lists of arrays.

>>> space = gym.spaces.Dict(goal=gym.spaces.Discrete(3), position=gym.spaces.Box(-1, 1, (2,), np.float64))
>>> [(spec.path, spec.shape, spec.dtype) for spec in array_specs(space)]
[(('goal',), (), '<i4'), (('position',), (2,), '<f4')]
>>> unflatten(space, flatten(space, {"goal": 1, "position": 2}))
{'goal': 1, 'position': 2}
"""

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from weft.envs.pools.arrays import ArraySpec
from weft.envs.spaces import dtype, map_space

# A set lookup by class is faster than isinstance, and happens at every step.
_ARRAY_SPACES = {gym.spaces.Box, gym.spaces.Discrete, gym.spaces.MultiDiscrete, gym.spaces.MultiBinary}


def array_specs(space: gym.Space) -> tuple[ArraySpec, ...]:
    """Returns the path, shape and dtype of every array in a value of the space."""
    return tuple(_specs(space, ()))


def flatten(space: gym.Space, tree: Any) -> list[Any]:
    """Returns the arrays of a nested value, in the order of the space's parts."""
    if space.__class__ in _ARRAY_SPACES:
        return [tree]
    if isinstance(space, gym.spaces.Dict):
        return [leaf for name, part in space.spaces.items() for leaf in flatten(part, tree[name])]
    if isinstance(space, gym.spaces.Tuple):
        return [leaf for part, value in zip(space.spaces, tree, strict=True) for leaf in flatten(part, value)]
    return [tree]


def unflatten(space: gym.Space, leaves: Sequence[Any]) -> Any:
    """Returns the nested value of a list of arrays: the inverse of `flatten`."""
    if space.__class__ in _ARRAY_SPACES:
        return leaves[0]
    remaining = iter(leaves)
    return map_space(lambda _: next(remaining), space)


def with_action_mask(observation: gym.Space, action: gym.Space) -> gym.spaces.Dict | None:
    """Returns the space of an observation together with its action mask, or None if such actions cannot be masked."""
    if isinstance(action, gym.spaces.Discrete):
        mask = gym.spaces.MultiBinary(int(action.n))
    elif isinstance(action, gym.spaces.MultiDiscrete) and action.nvec.ndim == 1:
        mask = gym.spaces.MultiBinary(int(action.nvec.sum()))
    else:
        return None
    return gym.spaces.Dict({"action_mask": mask, "observation": observation})


def _specs(space: gym.Space, path: tuple[Any, ...]) -> list[ArraySpec]:
    if isinstance(space, gym.spaces.Dict):
        return [spec for name, part in space.spaces.items() for spec in _specs(part, (*path, name))]
    if isinstance(space, gym.spaces.Tuple):
        return [spec for index, part in enumerate(space.spaces) for spec in _specs(part, (*path, index))]
    array_dtype = map_space(dtype, space)
    return [ArraySpec(path, tuple(np.shape(np.empty(space.shape or (), bool))), np.dtype(array_dtype).str)]
