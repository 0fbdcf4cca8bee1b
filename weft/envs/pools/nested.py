"""Between the nested arrays of a space and flat lists of them.

>>> space = gym.spaces.Dict(goal=gym.spaces.Discrete(3), place=gym.spaces.Box(-1, 1, (2,), np.float64))
>>> [(field.path, field.shape, field.dtype) for field in fields(space).fields]
[(('goal',), (), '<i4'), (('place',), (2,), '<f4')]
>>> unflatten(space, flatten(space, {"goal": 1, "place": 2}))
{'goal': 1, 'place': 2}
"""

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from weft.envs.pools.arrays import Field, Fields
from weft.envs.spaces import dtype, map_space

# Looked up at every step: quicker than asking a space what it is an instance of.
_ARRAYS = {gym.spaces.Box, gym.spaces.Discrete, gym.spaces.MultiDiscrete, gym.spaces.MultiBinary}


def fields(space: gym.Space, *, masked: bool = False) -> Fields:
    """The arrays of one observation of a space; `masked`, if it is one that `with_mask` made."""
    return Fields(tuple(_fields(space, ())), masked=masked)


def flatten(space: gym.Space, tree: Any) -> list[Any]:
    """The arrays of a nested value, in the order of the space's parts."""
    if space.__class__ in _ARRAYS:
        return [tree]
    if isinstance(space, gym.spaces.Dict):
        return [leaf for name, part in space.spaces.items() for leaf in flatten(part, tree[name])]
    if isinstance(space, gym.spaces.Tuple):
        return [leaf for part, value in zip(space.spaces, tree, strict=True) for leaf in flatten(part, value)]
    return [tree]


def unflatten(space: gym.Space, leaves: Sequence[Any]) -> Any:
    """The nested value that `flatten` took apart."""
    if space.__class__ in _ARRAYS:
        return leaves[0]
    remaining = iter(leaves)
    return map_space(lambda _: next(remaining), space)


def with_mask(observation: gym.Space, action: gym.Space) -> gym.spaces.Dict | None:
    """Observations together with which actions are allowed; None where no mask can be told for such actions."""
    if isinstance(action, gym.spaces.Discrete):
        allowed = gym.spaces.MultiBinary(int(action.n))
    elif isinstance(action, gym.spaces.MultiDiscrete) and action.nvec.ndim == 1:
        allowed = gym.spaces.MultiBinary(int(action.nvec.sum()))
    else:
        return None
    return gym.spaces.Dict({"action_mask": allowed, "observation": observation})


def _fields(space: gym.Space, path: tuple[Any, ...]) -> list[Field]:
    if isinstance(space, gym.spaces.Dict):
        return [field for name, part in space.spaces.items() for field in _fields(part, (*path, name))]
    if isinstance(space, gym.spaces.Tuple):
        return [field for number, part in enumerate(space.spaces) for field in _fields(part, (*path, number))]
    kind = map_space(dtype, space)
    return [Field(path, tuple(np.shape(np.empty(space.shape or (), bool))), np.dtype(kind).str)]
