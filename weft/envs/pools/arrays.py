"""Observations and actions as flat lists of arrays, one for each part of a nested space.

Plain NumPy, like `block`, and loaded by worker processes too: a `Field` is told its type by whoever knows what types a
device computes with. Environments hand out whatever they like, views of their own memory included: every value is
checked against its field and copied into a row of ours.

>>> fields = Fields((Field(("goal",), (), "<i4"), Field(("place",), (2,), "<f4")), masked=False)
>>> out = fields.empty(3)
>>> fields.write(out, 1, {"place": np.array([0.5, 1.5]), "goal": 7}, {})
>>> out[0][1], out[1][1].tolist()
(np.int32(7), [0.5, 1.5])
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np


@dataclass(frozen=True)
class Field:
    """One array of a nested observation: where it stands in it, its shape and its type."""

    path: tuple[Any, ...]
    shape: tuple[int, ...]
    dtype: str


class Fields:
    """All the arrays that an observation consists of."""

    def __init__(self, fields: tuple[Field, ...], *, masked: bool) -> None:
        self.fields = fields
        self.masked = masked
        """Whether `info` holds an action mask that belongs to the observation."""
        plain = len(fields) == 1 and fields[0].path == ()
        self.plain_shape = fields[0].shape if plain else None
        """The shape of an observation that is one array: the common case, which callers may treat by themselves."""
        self._arrays: dict[int, list[tuple[tuple[int, ...], np.dtype]]] = {}
        self._seen: set[tuple[Field, np.dtype]] = set()

    def empty(self, rows: int) -> list[np.ndarray]:
        """New arrays for so many rows."""
        arrays = self._arrays.get(rows) or self._of(rows)
        return [np.empty(shape, dtype) for shape, dtype in arrays]

    def write(self, out: list[np.ndarray], row: int, obs: Any, info: Any) -> None:
        """Copy one observation into a row, or say why it is none."""
        if self.masked:
            obs = {"observation": obs, "action_mask": mask_of(info)}
        for field, array in zip(self.fields, out, strict=True):
            value = _part(obs, field.path)
            if getattr(value, "shape", None) != field.shape:
                value = _shaped(value, field)
            array[row] = value

    def write_first(self, out: list[np.ndarray], row: int, obs: Any, info: Any) -> None:
        """`write` for the first observation of an episode, of which the types are looked at too."""
        self.write(out, row, obs, info)
        whole = {"observation": obs, "action_mask": mask_of(info)} if self.masked else obs
        for field in self.fields:
            given = _part(whole, field.path)
            kind = given.dtype if isinstance(given, np.ndarray) else np.asarray(given).dtype
            if (field, kind) not in self._seen:
                self._seen.add((field, _fitting(kind, field)))

    def _of(self, rows: int) -> list[tuple[tuple[int, ...], np.dtype]]:
        self._arrays[rows] = [((rows, *field.shape), np.dtype(field.dtype)) for field in self.fields]
        return self._arrays[rows]


class Actions:
    """Takes a batch of actions apart, into one action that the environment understands for each row."""

    def __init__(self, space: gym.Space) -> None:
        self._split = _splitter(space)

    def split(self, action: list[np.ndarray]) -> list[Any]:
        """One action for each row; those of a Discrete count from 0, and a Box's are clipped to its bounds."""
        return self._split(iter(action))


def has_nan(array: np.ndarray) -> bool:
    """Whether there is a NaN among the numbers: NumPy takes it for the largest, and finding that is the quickest test.

    >>> has_nan(np.array([1.0, np.nan, np.inf])), has_nan(np.array([1.0, np.inf, -np.inf]))
    (True, False)
    """
    if array.dtype.kind != "f" or not array.size:
        return False
    largest = array.item(array.argmax())
    return largest != largest


def mask_of(info: Any) -> np.ndarray:
    """The action mask in `info`, as one array."""
    mask = info.get("action_mask") if isinstance(info, dict) else None
    if mask is None:
        raise ValueError("info holds no action_mask, though it did when the environment was first reset")
    # A MultiDiscrete space has one mask for each of its numbers.
    return np.concatenate([np.asarray(part) for part in mask]) if isinstance(mask, tuple) else np.asarray(mask)


def _splitter(space: gym.Space) -> Callable[[Any], list[Any]]:
    if isinstance(space, gym.spaces.Dict):
        names, parts = list(space.spaces), [_splitter(part) for part in space.spaces.values()]
        return lambda arrays: [
            dict(zip(names, row, strict=True)) for row in zip(*[part(arrays) for part in parts], strict=True)
        ]
    if isinstance(space, gym.spaces.Tuple):
        parts = [_splitter(part) for part in space.spaces]
        return lambda arrays: list(zip(*[part(arrays) for part in parts], strict=True))
    if isinstance(space, gym.spaces.Discrete):
        return _discrete(int(space.start))
    if isinstance(space, gym.spaces.Box):
        return _box(space)
    start = getattr(space, "start", 0)
    return lambda arrays: list(next(arrays).astype(space.dtype) + np.asarray(start, space.dtype))


def _discrete(start: int) -> Callable[[Any], list[Any]]:
    if start:
        return lambda arrays: [number + start for number in next(arrays).tolist()]
    return lambda arrays: next(arrays).tolist()


def _box(space: gym.spaces.Box) -> Callable[[Any], list[Any]]:
    dtype, low, high = space.dtype, space.low, space.high

    def split(arrays: Any) -> list[Any]:
        action = np.maximum(next(arrays).astype(dtype, copy=False), low)
        return list(np.minimum(action, high, out=action))

    return split


def _part(obs: Any, path: tuple[Any, ...]) -> Any:
    for name in path:
        try:
            obs = obs[name]
        except (KeyError, IndexError, TypeError):
            raise TypeError(f"the observation has no part {name!r}: it is {_brief(obs)}") from None
    return obs


def _shaped(value: Any, field: Field) -> np.ndarray:
    try:
        array = np.asarray(value)
        if array.dtype.kind not in "biuf":
            raise ValueError
    except ValueError:
        raise TypeError(f"{_place(field)} is {_brief(value)}, not numbers of shape {field.shape}") from None
    if array.shape != field.shape:
        raise ValueError(f"{_place(field)} has the shape {array.shape}, not {field.shape}")
    return array


def _fitting(kind: np.dtype, field: Field) -> np.dtype:
    """The type itself, if numbers of it can be written to the field without losing what they mean."""
    if not np.can_cast(kind, field.dtype, "same_kind") and not (kind.kind in "iub" and field.dtype[1] in "iu"):
        raise TypeError(f"{_place(field)} is {kind}, which cannot become {np.dtype(field.dtype)}")
    return kind


def _place(field: Field) -> str:
    return "the observation" + "".join(f"[{name!r}]" for name in field.path)


def _brief(value: Any) -> str:
    if isinstance(value, dict):
        return f"a dict of {', '.join(map(repr, value))}" if value else "an empty dict"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return f"of type {type(value).__name__}"
