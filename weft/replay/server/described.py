"""How the header of a frame describes its arrays, and what of it is believed.

>>> text = written((("reward", "<f4", (2,), "raw", 8, None),))
>>> text, described(text).payload
(b'[["reward","<f4",[2],"raw",8,null]]', 64)

Frames are mostly like those before them, so what was made of a short description is remembered.
"""

import json
import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from weft.errors import WeftError
from weft.replay.server import compress

ALIGNMENT = 64
DTYPES = frozenset(np.dtype(kind).newbyteorder("<").str for kind in "?bBhHiIqQefdFD")
SHORT = 4096
"""Bytes of a description that is remembered."""
REMEMBERED = 256
"""How many are."""


class WireError(WeftError):
    """What came over a connection is not a frame; nothing more can be read from it."""


class Part(NamedTuple):
    """One array of a description, checked."""

    name: str
    dtype: np.dtype
    shape: tuple[int, ...]
    packing: str
    bytes: int
    """Of the payload; of the array itself where it is shared."""
    place: tuple[int, int] | None
    size: int
    """Bytes of the array, unpacked."""


class Described(NamedTuple):
    """The arrays of a frame, before they are read."""

    parts: tuple[Part, ...]
    size: int
    """Bytes of all of them, unpacked."""
    payload: int


@lru_cache(REMEMBERED)
def written(lines: tuple[tuple[Any, ...], ...]) -> bytes:
    """A description of arrays: of each its name, dtype, shape, packing, bytes, and place in shared memory."""
    return json.dumps(lines, separators=(",", ":")).encode()


def described(text: bytes) -> Described:
    """What `written` gave; a `WireError` where it cannot have given that."""
    return _remembered(text) if len(text) <= SHORT else _read(text)


def _read(text: bytes) -> Described:
    lines = parsed(text)
    if not isinstance(lines, list):
        raise WireError("a header came without a list of arrays")
    parts = tuple(map(_part, lines))
    if len({part.name for part in parts}) < len(parts):
        raise WireError("a frame came in which two arrays have the same name")
    payload = sum(part.bytes + -part.bytes % ALIGNMENT for part in parts if part.packing != "shared")
    return Described(parts, sum(part.size for part in parts), payload)


_remembered = lru_cache(REMEMBERED)(_read)


def parsed(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise WireError("a header came that is not JSON") from None


def _part(line: Any) -> Part:
    """One line of the header's description, refused unless all of it is as `encode` writes it."""
    if not isinstance(line, list) or len(line) != 6:
        raise WireError("a header came with an array that is not described by six values")
    name, dtype, shape, packing, size, place = line
    if not isinstance(name, str) or len(name) > 256 or not isinstance(dtype, str) or dtype not in DTYPES:
        raise WireError(f"an array came without a name or of a dtype that is not taken: {str(dtype)[:40]!r}")
    if not isinstance(shape, list) or len(shape) > 32 or not all(map(_natural, shape)) or not _natural(size):
        raise WireError(f"array {name!r} came with a shape that is none")
    if packing == "shared":
        if not isinstance(place, list) or len(place) != 2 or not all(map(_natural, place)):
            raise WireError(f"array {name!r} came without its place in shared memory")
        place = (place[0], place[1])
    elif packing not in ("raw", "lz4") or place is not None:
        raise WireError(f"array {name!r} came packed in a way that is not known")
    bytes_of_all = math.prod(shape) * np.dtype(dtype).itemsize
    part = Part(name, np.dtype(dtype), tuple(shape), packing, size, place, bytes_of_all)
    if part.size > compress.MOST_GAIN * size + ALIGNMENT if packing == "lz4" else part.size != size:
        raise WireError(f"array {name!r} of {part.size:,} bytes came as {size:,}")
    return part


def _natural(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 62
