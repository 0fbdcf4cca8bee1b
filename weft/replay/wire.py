"""Frames on a socket: a JSON header and the raw bytes of arrays, and nothing that could be run.

A frame is a prefix of 20 bytes (magic, version, two lengths), a header and a payload. The header is a JSON object; its
`arrays` describes each array by name, dtype, shape, how it is packed and how many bytes of the payload it takes:

- `raw`: as it lies in memory;
- `lz4`: compressed, where that pays (see `compress`);
- `shared`: not in the payload but in memory that both sides see (see `shared`), at a place in a segment.

What comes in is not trusted. Lengths, counts, names, dtypes and shapes are checked against `Limits` and against each
other before memory is taken for them, and whatever does not fit raises `WireError`, after which the connection is of
no more use.

>>> buffers = encode({"method": "insert"}, {"reward": np.array([0.5, 1.0], np.float32)})
>>> message = decode(b"".join(bytes(buffer) for buffer in buffers))
>>> message.head["method"], message.arrays["reward"].tolist()
('insert', [0.5, 1.0])
"""

import json
import math
import socket
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from weft.errors import WeftError
from weft.replay import compress

MAGIC = b"WEFT"
VERSION = 1
PREFIX = struct.Struct("<4sHHIQ")
ALIGNMENT = 64
KINDS = "biufc"
DTYPES = frozenset(np.dtype(kind).newbyteorder("<").str for kind in "?bBhHiIqQefdFD")
# The kernel takes at most this many pieces at once.
PIECES = 512

Arrays = Mapping[str, np.ndarray]
Buffer = bytes | memoryview


class WireError(WeftError):
    """What came over a connection is not a frame; nothing more can be read from it."""


@dataclass(frozen=True)
class Limits:
    """What a side accepts in one frame."""

    header: int = 1 << 20
    frame: int = 1 << 32
    """Bytes of all arrays together, unpacked."""
    arrays: int = 1024


GUEST = Limits(header=4096, frame=0, arrays=0)
"""For somebody who has not shown the token yet."""


class Message(NamedTuple):
    """A frame that was read: the header without the description of its arrays, and the arrays."""

    head: dict[str, Any]
    arrays: dict[str, np.ndarray]


class Placed(NamedTuple):
    """An array that lies in shared memory: what it is, and where."""

    array: np.ndarray
    segment: int
    offset: int


class Part(NamedTuple):
    """One line of a header's `arrays`, checked."""

    name: str
    dtype: np.dtype
    shape: tuple[int, ...]
    packing: str
    bytes: int
    """Of the payload; of the array itself where it is shared."""
    place: tuple[int, int] | None

    @property
    def size(self) -> int:
        """Bytes of the array, unpacked."""
        return math.prod(self.shape) * self.dtype.itemsize


def encode(
    head: Mapping[str, Any], arrays: Mapping[str, np.ndarray | Placed], packer: compress.Packer | None = None
) -> list[Buffer]:
    """The pieces of a frame, to be sent one after the other; arrays are not copied where they lie in one piece."""
    described: list[list[Any]] = []
    payload: list[Buffer] = []
    total = 0
    for name, given in arrays.items():
        array = _plain(name, given.array if isinstance(given, Placed) else given)
        line = [name, array.dtype.str, array.shape]
        if isinstance(given, Placed):
            described.append([*line, "shared", array.nbytes, [given.segment, given.offset]])
            continue
        flat = array.reshape(-1).view(np.uint8)
        packed = packer.pack(name, flat) if packer else None
        packing, buffer = ("raw", flat.data) if packed is None else ("lz4", packed)
        size = len(buffer)
        described.append([*line, packing, size, None])
        payload += [buffer, bytes(-size % ALIGNMENT)]
        total += size + -size % ALIGNMENT
    text = json.dumps({**head, "arrays": described}, separators=(",", ":")).encode()
    prefix = PREFIX.pack(MAGIC, VERSION, 0, len(text), total)
    return [prefix + text, *(piece for piece in payload if len(piece))]


def read_prefix(prefix: Buffer, limits: Limits) -> tuple[int, int]:
    """Bytes of the header and of the payload, refused where they are not a frame's or too many."""
    magic, version, reserved, header, payload = PREFIX.unpack(prefix)
    if magic != MAGIC or reserved:
        raise WireError("these bytes are not a frame of weft's replay: is another program at this address?")
    if version != VERSION:
        raise WireError(f"a frame of version {version} came, and this side speaks {VERSION}: use the same weft on both")
    if header > limits.header or payload > limits.frame + limits.arrays * ALIGNMENT:
        most = f"{limits.header:,} + {limits.frame:,}"
        raise WireError(f"a frame of {header:,} + {payload:,} bytes came, and at most {most} are taken")
    return header, payload


def read_header(text: bytes, payload: int, limits: Limits) -> tuple[dict[str, Any], list[Part]]:
    """What a header says, with every line about an array checked: also that together they are the payload."""
    try:
        head = json.loads(text)
    except (ValueError, RecursionError):
        raise WireError("a header came that is not JSON") from None
    if not isinstance(head, dict) or not isinstance(head.get("arrays"), list):
        raise WireError("a header came that is not an object with a list of arrays")
    lines = head.pop("arrays")
    if len(lines) > limits.arrays:
        raise WireError(f"a frame of {len(lines):,} arrays came, and at most {limits.arrays:,} are taken")
    parts = [_part(line) for line in lines]
    if len({part.name for part in parts}) < len(parts):
        raise WireError("a frame came in which two arrays have the same name")
    if sum(part.size for part in parts) > limits.frame:
        raise WireError(f"a frame came whose arrays take more than {limits.frame:,} bytes")
    if sum(part.bytes + -part.bytes % ALIGNMENT for part in parts if part.packing != "shared") != payload:
        raise WireError("a frame came whose arrays are not as long as its payload")
    return head, parts


Find = Callable[[int, int, int], np.ndarray]
"""The bytes of a segment of shared memory: by its number, from where, how many."""


def unpack(parts: list[Part], payload: np.ndarray, find: Find | None = None) -> dict[str, np.ndarray]:
    """The arrays of a frame: views of its payload or of shared memory, or unpacked from it."""
    arrays: dict[str, np.ndarray] = {}
    offset = 0
    for part in parts:
        if part.place is not None:
            if find is None:
                raise WireError("a frame came that points to shared memory, and none is shared")
            flat = find(*part.place, part.size)
        else:
            flat = payload[offset : offset + part.bytes]
            offset += part.bytes + -part.bytes % ALIGNMENT
            if part.packing == "lz4":
                flat = _unpacked(flat, part)
        arrays[part.name] = flat.view(part.dtype).reshape(part.shape)
    return arrays


def decode(frame: bytes, limits: Limits | None = None) -> Message:
    """A whole frame in memory, as a log keeps it."""
    limits = limits or Limits()
    if len(frame) < PREFIX.size:
        raise WireError("a frame came that ends before it begins")
    header, payload = read_prefix(frame[: PREFIX.size], limits)
    end = PREFIX.size + header
    if len(frame) != end + payload:
        raise WireError(f"a frame of {end + payload:,} bytes is only {len(frame):,} long")
    head, parts = read_header(frame[PREFIX.size : end], payload, limits)
    return Message(head, unpack(parts, np.frombuffer(frame, np.uint8, payload, end)))


def send(connection: socket.socket, buffers: list[Buffer]) -> None:
    """All of a frame, in as few calls as can be."""
    views = [memoryview(buffer) for buffer in buffers]
    while views:
        advance(views, connection.sendmsg(views[:PIECES]))


def advance(views: list[memoryview], sent: int) -> None:
    """Take away what was sent."""
    while views and sent >= len(views[0]):
        sent -= len(views.pop(0))
    if sent:
        views[0] = views[0][sent:]


def _new(size: int) -> np.ndarray:
    return np.empty(size, np.uint8)


def receive(
    connection: socket.socket,
    limits: Limits,
    find: Find | None = None,
    prefix: bytes | None = None,
    room: Callable[[int], np.ndarray] = _new,
) -> Message | None:
    """The next frame, its payload in a `room`; None where the other side closed the connection after the last one."""
    if prefix is None:
        prefix = bytes(_exactly(connection, _new(PREFIX.size), start=True))
    if not prefix:
        return None
    header, size = read_prefix(prefix, limits)
    text = bytes(_exactly(connection, _new(header)))
    head, parts = read_header(text, size, limits)
    return Message(head, unpack(parts, _exactly(connection, room(size)), find))


def _exactly(connection: socket.socket, buffer: np.ndarray, start: bool = False) -> np.ndarray:
    """The buffer, filled; empty, if the other side closed at the `start` of a frame."""
    got, size = 0, len(buffer)
    while got < size:
        count = connection.recv_into(buffer.data[got:], 0, socket.MSG_WAITALL)
        if not count and start and not got:
            return buffer[:0]
        if not count:
            raise WireError(f"the connection ended after {got:,} of {size:,} bytes")
        got += count
    return buffer


def _plain(name: str, given: Any) -> np.ndarray:
    """The array in one piece and in the byte order of the wire."""
    if type(given) is np.ndarray and given.flags.c_contiguous and given.dtype.str in DTYPES:
        return given
    array = np.asarray(given)
    if array.dtype.kind not in KINDS or array.dtype.newbyteorder("<").str not in DTYPES:
        raise WeftError(f"column {name!r} is of {array.dtype}: only booleans and numbers are sent")
    shape = array.shape
    return np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(shape)


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
    part = Part(name, np.dtype(dtype), tuple(shape), packing, size, place)
    if part.size > compress.MOST_GAIN * size + ALIGNMENT if packing == "lz4" else part.size != size:
        raise WireError(f"array {name!r} of {part.size:,} bytes came as {size:,}")
    return part


def _natural(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 62


def _unpacked(flat: np.ndarray, part: Part) -> np.ndarray:
    try:
        return compress.unpack(flat, part.size)
    except ValueError:
        raise WireError(f"array {part.name!r} came as {part.bytes:,} bytes that do not unpack") from None
