"""Spaces as JSON: `space_to_json` and its inverse, `space_from_json`.

>>> space = gym.spaces.Dict(goal=gym.spaces.Discrete(3), image=gym.spaces.Box(0, 255, (4, 4), np.uint8))
>>> space_to_json(space["image"])
{'kind': 'Box', 'shape': [4, 4], 'dtype': 'uint8', 'low': 0, 'high': 255}
>>> space_from_json(space_to_json(space)) == space
True
"""

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from weft.errors import WeftError


def space_to_json(space: gym.Space) -> dict[str, Any]:
    """Returns a space as a dictionary of JSON values. Bounds that are equal in all entries become one number."""
    kind = type(space).__name__
    match space:
        case gym.spaces.Dict():
            return {"kind": "Dict", "parts": {name: space_to_json(part) for name, part in space.spaces.items()}}
        case gym.spaces.Tuple():
            return {"kind": "Tuple", "parts": [space_to_json(part) for part in space.spaces]}
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
        f"a {kind} space cannot be written as JSON: it must be Box, Discrete, MultiDiscrete or MultiBinary, or a Dict "
        "or Tuple of those"
    )


def space_from_json(json: Mapping[str, Any]) -> gym.Space:
    """Returns the space of a dictionary that `space_to_json` returned."""
    match json.get("kind"):
        case "Dict":
            return gym.spaces.Dict({name: space_from_json(part) for name, part in json["parts"].items()})
        case "Tuple":
            return gym.spaces.Tuple([space_from_json(part) for part in json["parts"]])
        case "Box":
            dtype, shape = np.dtype(json["dtype"]), tuple(json["shape"])
            low, high = (np.broadcast_to(np.asarray(json[end], dtype), shape) for end in ("low", "high"))
            return gym.spaces.Box(low, high, shape, dtype.type)
        case "Discrete":
            return gym.spaces.Discrete(json["n"], start=json["start"])
        case "MultiDiscrete":
            return gym.spaces.MultiDiscrete(json["nvec"])
        case "MultiBinary":
            return gym.spaces.MultiBinary(json["n"])
    raise WeftError(f"{json!r} describes no space: it must be a dictionary that weft wrote")


def _bound(bound: np.ndarray) -> Any:
    """Returns one number if all entries are equal, else a list. Infinite numbers become text."""
    first = bound.reshape(-1)[:1]
    all_equal = first.size and (bound == first[0]).all()
    numbers = first[0] if all_equal else bound
    return (numbers if np.isfinite(numbers).all() else numbers.astype(str)).tolist()
