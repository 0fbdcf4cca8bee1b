"""Observations and actions as flat lists of arrays, one for each part of a nested space.

This module uses NumPy and Gymnasium only, because worker processes import it without the rest of weft (see
`worker_main`). Environments may return views of their own memory, so every value is checked against its `ArraySpec` and
copied into a row of a buffer.

>>> writer = ObservationWriter((ArraySpec(("goal",), (), "<i4"), ArraySpec(("position",), (2,), "<f4")), masked=False)
>>> out = writer.allocate(3)
>>> writer.write(out, 1, {"position": np.array([0.5, 1.5]), "goal": 7}, {})
>>> out[0][1], out[1][1].tolist()
(np.int32(7), [0.5, 1.5])
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np


@dataclass(frozen=True)
class ArraySpec:
    """One array of a nested observation: its path, shape and dtype."""

    path: tuple[Any, ...]
    shape: tuple[int, ...]
    dtype: str


class ObservationWriter:
    """Copies observations of an environment into rows of preallocated arrays, one array for each spec."""

    def __init__(self, specs: tuple[ArraySpec, ...], *, masked: bool) -> None:
        self.specs = specs
        self.masked = masked
        """Whether the action mask in `info` is part of the observation."""
        is_single = len(specs) == 1 and specs[0].path == ()
        self.single_shape = specs[0].shape if is_single else None
        """The shape of an observation that is a single array: callers may copy this common case themselves."""
        self._shapes: dict[int, list[tuple[tuple[int, ...], np.dtype]]] = {}
        self._checked_dtypes: set[tuple[ArraySpec, np.dtype]] = set()

    def allocate(self, rows: int) -> list[np.ndarray]:
        """Returns new arrays with `rows` rows."""
        shapes = self._shapes.get(rows) or self._shapes_of(rows)
        return [np.empty(shape, dtype) for shape, dtype in shapes]

    def write(self, out: list[np.ndarray], row: int, obs: Any, info: Any) -> None:
        """Copies one observation into a row. Raises if a part is missing or has the wrong shape."""
        if self.masked:
            obs = {"observation": obs, "action_mask": action_mask(info)}
        for spec, array in zip(self.specs, out, strict=True):
            value = _part(obs, spec.path)
            if getattr(value, "shape", None) != spec.shape:
                value = _shaped(value, spec)
            array[row] = value

    def write_first(self, out: list[np.ndarray], row: int, obs: Any, info: Any) -> None:
        """Like `write`, for the first observation of an episode: checks the dtypes, too."""
        self.write(out, row, obs, info)
        whole = {"observation": obs, "action_mask": action_mask(info)} if self.masked else obs
        for spec in self.specs:
            value = _part(whole, spec.path)
            dtype = value.dtype if isinstance(value, np.ndarray) else np.asarray(value).dtype
            if (spec, dtype) not in self._checked_dtypes:
                _check_dtype(dtype, spec)
                self._checked_dtypes.add((spec, dtype))

    def _shapes_of(self, rows: int) -> list[tuple[tuple[int, ...], np.dtype]]:
        self._shapes[rows] = [((rows, *spec.shape), np.dtype(spec.dtype)) for spec in self.specs]
        return self._shapes[rows]


class ActionSplitter:
    """Splits a batch of actions into one action per row, as the environment expects it."""

    def __init__(self, space: gym.Space) -> None:
        self._split = _splitter(space)

    def split(self, action: list[np.ndarray]) -> list[Any]:
        """Returns one action per row. Discrete actions in the batch count from 0; Box actions are clipped to bounds."""
        return self._split(iter(action))


def has_nan(array: np.ndarray) -> bool:
    """Returns whether an array contains NaN. `argmax` returns the position of a NaN if there is one: the fastest test.

    >>> has_nan(np.array([1.0, np.nan, np.inf])), has_nan(np.array([1.0, np.inf, -np.inf]))
    (True, False)
    """
    if array.dtype.kind != "f" or not array.size:
        return False
    largest = array.item(array.argmax())
    return largest != largest


def action_mask(info: Any) -> np.ndarray:
    """Returns the action mask in `info` as one array."""
    mask = info.get("action_mask") if isinstance(info, dict) else None
    if mask is None:
        raise ValueError("info holds no action_mask, though it did when the environment was first reset")
    # The mask of a MultiDiscrete space is a tuple, with one mask for each component.
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


def _shaped(value: Any, spec: ArraySpec) -> np.ndarray:
    try:
        array = np.asarray(value)
        if array.dtype.kind not in "biuf":
            raise ValueError
    except ValueError:
        raise TypeError(f"{_name(spec)} is {_brief(value)}, not numbers of shape {spec.shape}") from None
    if array.shape != spec.shape:
        raise ValueError(f"{_name(spec)} has the shape {array.shape}, not {spec.shape}")
    return array


def _check_dtype(dtype: np.dtype, spec: ArraySpec) -> None:
    """Raises if the conversion to the spec's dtype would lose the fractions of floating-point values."""
    if not np.can_cast(dtype, spec.dtype, "same_kind") and not (dtype.kind in "iub" and spec.dtype[1] in "iu"):
        raise TypeError(f"{_name(spec)} is {dtype}, which cannot become {np.dtype(spec.dtype)}")


def _name(spec: ArraySpec) -> str:
    return "the observation" + "".join(f"[{name!r}]" for name in spec.path)


def _brief(value: Any) -> str:
    if isinstance(value, dict):
        return f"a dict of {', '.join(map(repr, value))}" if value else "an empty dict"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return f"of type {type(value).__name__}"
