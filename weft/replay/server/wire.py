"""Frames on a socket: a JSON header and the raw bytes of arrays, and nothing that could be run.

A frame is a prefix of 20 bytes (magic, version, two lengths), a header and a payload. The header is a JSON object and,
on a line of its own, a JSON list that describes each array by name, dtype, shape, how it is packed and how many bytes
of the payload it takes:

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
import socket
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from weft.errors import WeftError
from weft.replay.server import compress
from weft.replay.server.described import ALIGNMENT, DTYPES, Part, WireError, described, parsed, written

MAGIC = b"WEFT"
VERSION = 2
PREFIX = struct.Struct("<4sHHIQ")
KINDS = "biufc"
# The kernel takes at most this many pieces at once.
PIECES = 512

Arrays = Mapping[str, np.ndarray]
Buffer = bytes | memoryview


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


def encode(
    head: Mapping[str, Any], arrays: Mapping[str, np.ndarray | Placed], packer: compress.Packer | None = None
) -> list[Buffer]:
    """The pieces of a frame, to be sent one after the other; arrays are not copied where they lie in one piece."""
    lines: list[tuple[Any, ...]] = []
    payload: list[Buffer] = []
    total = 0
    for name, given in arrays.items():
        array = _plain(name, given.array if isinstance(given, Placed) else given)
        line = (name, array.dtype.str, array.shape)
        if isinstance(given, Placed):
            lines.append((*line, "shared", array.nbytes, (given.segment, given.offset)))
            continue
        flat = array.reshape(-1).view(np.uint8)
        packed = packer.pack(name, flat) if packer else None
        packing, buffer = ("raw", flat.data) if packed is None else ("lz4", packed)
        size = len(buffer)
        lines.append((*line, packing, size, None))
        payload += [buffer, bytes(-size % ALIGNMENT)]
        total += size + -size % ALIGNMENT
    text = json.dumps(head, separators=(",", ":")).encode() + b"\n" + written(tuple(lines))
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


def read_header(text: bytes, payload: int, limits: Limits) -> tuple[dict[str, Any], tuple[Part, ...]]:
    """What a header says, with every array's description checked: also that together they are the payload."""
    first, _, rest = text.partition(b"\n")
    head = parsed(first)
    if not isinstance(head, dict):
        raise WireError("a header came that is not an object")
    parts, size, expected = described(rest)
    if len(parts) > limits.arrays:
        raise WireError(f"a frame of {len(parts):,} arrays came, and at most {limits.arrays:,} are taken")
    if size > limits.frame:
        raise WireError(f"a frame came whose arrays take more than {limits.frame:,} bytes")
    if expected != payload:
        raise WireError("a frame came whose arrays are not as long as its payload")
    return head, parts


Find = Callable[[int, int, int], np.ndarray]
"""The bytes of a segment of shared memory: by its number, from where, how many."""
Room = Callable[[int], np.ndarray]
"""Memory for so many bytes."""


def _new(size: int) -> np.ndarray:
    return np.empty(size, np.uint8)


def unpack(
    parts: tuple[Part, ...], payload: np.ndarray, find: Find | None = None, room: Room = _new
) -> dict[str, np.ndarray]:
    """The arrays of a frame: views of its payload or of shared memory, or unpacked from it into a room."""
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
                flat = _unpacked(flat, part, room(part.size))
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


def receive(
    connection: socket.socket,
    limits: Limits,
    find: Find | None = None,
    prefix: bytes | None = None,
    room: Room = _new,
) -> Message | None:
    """The next frame, what is large in a `room`; None where the other side closed the connection after the last one."""
    if prefix is None:
        prefix = bytes(_exactly(connection, _new(PREFIX.size), start=True))
    if not prefix:
        return None
    header, size = read_prefix(prefix, limits)
    text = bytes(_exactly(connection, _new(header)))
    head, parts = read_header(text, size, limits)
    return Message(head, unpack(parts, _exactly(connection, room(size)), find, room))


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


def _unpacked(packed: np.ndarray, part: Part, flat: np.ndarray) -> np.ndarray:
    try:
        compress.unpack(packed, flat)
        return flat
    except ValueError:
        raise WireError(f"array {part.name!r} came as {part.bytes:,} bytes that do not unpack") from None
