r"""The header of a frame: a JSON object, and on a second line a JSON list that describes each array of the payload.

An array is described by its name, dtype, shape, encoding, stored bytes, and location in shared memory:

>>> text = encode_header({"id": 1}, (("reward", "<f4", (2,), "raw", 8, None),))
>>> text
b'{"id":1}\n[["reward","<f4",[2],"raw",8,null]]'
>>> head, descriptors = decode_header(text, payload=64, limits=Limits())
>>> head, descriptors[0].name, descriptors[0].array_bytes
({'id': 1}, 'reward', 8)

Headers are untrusted input: everything is checked before memory is allocated. Consecutive frames usually describe the
same arrays, so encoded and decoded descriptions are cached.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from weft.errors import WeftError
from weft.replay.server.compression import MAX_RATIO

ALIGNMENT = 64
"""Arrays start at multiples of this many bytes, in a payload and in shared memory."""
DTYPES = frozenset(np.dtype(kind).newbyteorder("<").str for kind in "?bBhHiIqQefdFD")
CACHED_BYTES = 4096
"""Longer descriptions are not cached."""
CACHED_DESCRIPTIONS = 256


class WireError(WeftError):
    """The received bytes are not a valid frame; the connection cannot be used any more."""


@dataclass(frozen=True)
class Limits:
    """The largest frame that a process accepts."""

    header: int = 1 << 20
    """Bytes of the header."""
    frame: int = 1 << 32
    """Bytes of all arrays together, decompressed."""
    arrays: int = 1024


class ArrayDescriptor(NamedTuple):
    """The validated description of one array."""

    name: str
    dtype: np.dtype
    shape: tuple[int, ...]
    encoding: str
    """raw, lz4 or shared."""
    stored_bytes: int
    """Bytes in the payload or, if shared, in shared memory."""
    location: tuple[int, int] | None
    """The segment's number and the offset, if shared."""
    array_bytes: int
    """Bytes of the decompressed array."""


class PayloadLayout(NamedTuple):
    """The arrays of a payload."""

    descriptors: tuple[ArrayDescriptor, ...]
    array_bytes: int
    """Bytes of all arrays together, decompressed."""
    payload_bytes: int


def encode_header(head: Mapping[str, Any], descriptions: tuple[tuple[Any, ...], ...]) -> bytes:
    """Returns the header's bytes. `descriptions` has a tuple per array, with the fields in the order shown above."""
    return json.dumps(head, separators=(",", ":")).encode() + b"\n" + _encode_descriptions(descriptions)


def decode_header(text: bytes, payload: int, limits: Limits) -> tuple[dict[str, Any], tuple[ArrayDescriptor, ...]]:
    """Returns the JSON object and the array descriptors of a header; its frame's payload has `payload` bytes."""
    first_line, _, rest = text.partition(b"\n")
    head = _parse_json(first_line)
    if not isinstance(head, dict):
        raise WireError("received a header that is not a JSON object")
    descriptors, array_bytes, payload_bytes = _decode_descriptions(rest)
    if len(descriptors) > limits.arrays:
        raise WireError(f"received a frame of {len(descriptors):,} arrays: at most {limits.arrays:,} are accepted")
    if array_bytes > limits.frame:
        raise WireError(f"received a frame with more than {limits.frame:,} bytes of arrays")
    if payload_bytes != payload:
        raise WireError(f"received a payload of {payload:,} bytes: its header describes {payload_bytes:,} bytes")
    return head, descriptors


def align(size: int) -> int:
    """Rounds up to a multiple of the alignment."""
    return size + -size % ALIGNMENT


@lru_cache(CACHED_DESCRIPTIONS)
def _encode_descriptions(descriptions: tuple[tuple[Any, ...], ...]) -> bytes:
    return json.dumps(descriptions, separators=(",", ":")).encode()


def _decode_descriptions(text: bytes) -> PayloadLayout:
    return _decode_cached(text) if len(text) <= CACHED_BYTES else _decode_uncached(text)


def _decode_uncached(text: bytes) -> PayloadLayout:
    descriptions = _parse_json(text)
    if not isinstance(descriptions, list):
        raise WireError("received a header without a list of arrays")
    descriptors = tuple(map(_check_description, descriptions))
    if len({each.name for each in descriptors}) < len(descriptors):
        raise WireError("received a frame with two arrays of the same name")
    payload_bytes = sum(align(each.stored_bytes) for each in descriptors if each.encoding != "shared")
    return PayloadLayout(descriptors, sum(each.array_bytes for each in descriptors), payload_bytes)


_decode_cached = lru_cache(CACHED_DESCRIPTIONS)(_decode_uncached)


def _parse_json(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise WireError("received a header that is not JSON") from None


def _check_description(description: Any) -> ArrayDescriptor:
    """Returns the descriptor of one array; rejects everything that `wire.encode` does not write."""
    if not isinstance(description, list) or len(description) != 6:
        raise WireError("received an array description that does not have six values")
    name, dtype, shape, encoding, stored, location = description
    if not isinstance(name, str) or len(name) > 256 or not isinstance(dtype, str) or dtype not in DTYPES:
        raise WireError(f"received an array with an invalid name or an unsupported dtype: {str(dtype)[:40]!r}")
    if not isinstance(shape, list) or len(shape) > 32 or not all(map(_is_size, shape)) or not _is_size(stored):
        raise WireError(f"array {name!r} has an invalid shape or size")
    if encoding == "shared":
        if not isinstance(location, list) or len(location) != 2 or not all(map(_is_size, location)):
            raise WireError(f"array {name!r} is in shared memory, but its location is missing")
        location = (location[0], location[1])
    elif encoding not in ("raw", "lz4") or location is not None:
        raise WireError(f"array {name!r} has an unknown encoding")
    size = math.prod(shape) * np.dtype(dtype).itemsize
    if size > MAX_RATIO * stored + ALIGNMENT if encoding == "lz4" else size != stored:
        raise WireError(f"array {name!r} of {size:,} bytes is stored in {stored:,} bytes")
    return ArrayDescriptor(name, np.dtype(dtype), tuple(shape), encoding, stored, location, size)


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 62
