"""Spaces written down: as plain values that JSON can hold, and read back.

>>> space = gym.spaces.Dict(goal=gym.spaces.Discrete(3), image=gym.spaces.Box(0, 255, (4, 4), np.uint8))
>>> write_space(space["image"])
{'kind': 'Box', 'shape': [4, 4], 'dtype': 'uint8', 'low': 0, 'high': 255}
>>> read_space(write_space(space)) == space
True
"""

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from weft.errors import WeftError


def write_space(space: gym.Space) -> dict[str, Any]:
    """A space as a dictionary; bounds that are the same everywhere are one number."""
    kind = type(space).__name__
    match space:
        case gym.spaces.Dict():
            return {"kind": "Dict", "parts": {name: write_space(part) for name, part in space.spaces.items()}}
        case gym.spaces.Tuple():
            return {"kind": "Tuple", "parts": [write_space(part) for part in space.spaces]}
        case gym.spaces.Box():
            bounds = {"low": _bound(space.low), "high": _bound(space.high)}
            return {"kind": "Box", "shape": list(space.shape), "dtype": space.dtype.name, **bounds}
        case gym.spaces.Discrete():
            return {"kind": "Discrete", "n": int(space.n), "start": int(space.start)}
        case gym.spaces.MultiDiscrete():
            return {"kind": "MultiDiscrete", "nvec": space.nvec.tolist()}
        case gym.spaces.MultiBinary():
            return {"kind": "MultiBinary", "n": space.n if isinstance(space.n, int) else list(space.n)}
    raise WeftError(
        f"a {kind} space cannot be written down: it must be Box, Discrete, MultiDiscrete or MultiBinary, or a Dict or "
        "Tuple of those"
    )


def read_space(written: Mapping[str, Any]) -> gym.Space:
    """The space that `write_space` wrote."""
    match written.get("kind"):
        case "Dict":
            return gym.spaces.Dict({name: read_space(part) for name, part in written["parts"].items()})
        case "Tuple":
            return gym.spaces.Tuple([read_space(part) for part in written["parts"]])
        case "Box":
            dtype, shape = np.dtype(written["dtype"]), tuple(written["shape"])
            low, high = (np.broadcast_to(np.asarray(written[end], dtype), shape) for end in ("low", "high"))
            return gym.spaces.Box(low, high, shape, dtype.type)
        case "Discrete":
            return gym.spaces.Discrete(written["n"], start=written["start"])
        case "MultiDiscrete":
            return gym.spaces.MultiDiscrete(written["nvec"])
        case "MultiBinary":
            return gym.spaces.MultiBinary(written["n"])
    raise WeftError(f"no space is written down as {written!r}")


def _bound(bound: np.ndarray) -> Any:
    """One number if it is the same everywhere; what JSON has no number for is text."""
    first = bound.reshape(-1)[:1]
    alike = first.size and (bound == first[0]).all()
    numbers = first[0] if alike else bound
    return (numbers if np.isfinite(numbers).all() else numbers.astype(str)).tolist()
