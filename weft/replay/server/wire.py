"""Frames on a socket: a JSON header and the raw bytes of arrays. Reading a frame never executes code.

A frame is a prefix of 20 bytes (magic, version, two lengths), a header (see `frame_header`) and a payload. An array's
encoding is one of

- `raw`: its bytes, in the payload;
- `lz4`: its compressed bytes, in the payload (see `compression`);
- `shared`: a location in a segment that both processes have mapped (see `shared_memory`).

Frames are untrusted input. Lengths, counts, names, dtypes and shapes are checked against `Limits` and against each
other before memory is allocated. An invalid frame raises `WireError`, after which the connection cannot be used.

>>> buffers = encode({"method": "insert"}, {"reward": np.array([0.5, 1.0], np.float32)})
>>> message = decode(b"".join(bytes(buffer) for buffer in buffers))
>>> message.head["method"], message.arrays["reward"].tolist()
('insert', [0.5, 1.0])
"""

import socket
import struct
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from weft.errors import WeftError
from weft.replay.server.compression import Compressor, decompress
from weft.replay.server.frame_header import (
    ALIGNMENT,
    DTYPES,
    ArrayDescriptor,
    Limits,
    WireError,
    align,
    decode_header,
    encode_header,
)

MAGIC = b"WEFT"
VERSION = 2
PREFIX = struct.Struct("<4sHHIQ")
KINDS = "biufc"
"""NumPy's kinds of dtypes that can be sent: booleans and numbers."""
MAX_BUFFERS = 512
"""Buffers for one system call, below the kernel's limit."""

Arrays = Mapping[str, np.ndarray]
Buffer = bytes | memoryview
FindShared = Callable[[int, int, int], np.ndarray]
"""Returns bytes of shared memory, given the segment's number, the offset and the size."""
Allocate = Callable[[int], np.ndarray]
"""Returns a buffer of the given number of bytes."""

UNAUTHENTICATED = Limits(header=4096, frame=0, arrays=0)
"""For connections that have not sent the token yet."""


class Message(NamedTuple):
    """A received frame: the header's JSON object, and the arrays."""

    head: dict[str, Any]
    arrays: dict[str, np.ndarray]


class SharedArray(NamedTuple):
    """An array in shared memory, and its location."""

    array: np.ndarray
    segment: int
    offset: int


def encode(
    head: Mapping[str, Any], arrays: Mapping[str, np.ndarray | SharedArray], compressor: Compressor | None = None
) -> list[Buffer]:
    """Returns the buffers of a frame, to be sent in order. Contiguous arrays are not copied."""
    descriptions: list[tuple[Any, ...]] = []
    payload: list[Buffer] = []
    total = 0
    for name, value in arrays.items():
        array = _to_contiguous(name, value.array if isinstance(value, SharedArray) else value)
        description = (name, array.dtype.str, array.shape)
        if isinstance(value, SharedArray):
            descriptions.append((*description, "shared", array.nbytes, (value.segment, value.offset)))
            continue
        flat = array.reshape(-1).view(np.uint8)
        compressed = compressor.compress(name, flat) if compressor else None
        encoding, buffer = ("raw", flat.data) if compressed is None else ("lz4", compressed)
        size = len(buffer)
        descriptions.append((*description, encoding, size, None))
        payload += [buffer, bytes(align(size) - size)]
        total += align(size)
    header = encode_header(head, tuple(descriptions))
    prefix = PREFIX.pack(MAGIC, VERSION, 0, len(header), total)
    return [prefix + header, *(buffer for buffer in payload if len(buffer))]


def read_prefix(prefix: Buffer, limits: Limits) -> tuple[int, int]:
    """Returns the bytes of the header and of the payload; raises if this is not a frame, or exceeds the limits."""
    magic, version, reserved, header, payload = PREFIX.unpack(prefix)
    if magic != MAGIC or reserved:
        raise WireError("received bytes that are not a frame of weft's replay: is another program at this address?")
    if version != VERSION:
        raise WireError(
            f"received a frame of protocol version {version}, expected {VERSION}: use the same version of weft on the "
            "client and the server"
        )
    if header > limits.header or payload > limits.frame + limits.arrays * ALIGNMENT:
        most = f"{limits.header:,} + {limits.frame:,}"
        raise WireError(f"received a frame of {header:,} + {payload:,} bytes: at most {most} are accepted")
    return header, payload


def decode(frame: bytes, limits: Limits | None = None) -> Message:
    """Decodes a frame that is complete in memory, such as a record of the journal."""
    limits = limits or Limits()
    if len(frame) < PREFIX.size:
        raise WireError(f"a frame of {len(frame)} bytes is shorter than its prefix of {PREFIX.size} bytes")
    header, payload = read_prefix(frame[: PREFIX.size], limits)
    end = PREFIX.size + header
    if len(frame) != end + payload:
        raise WireError(f"a frame of {end + payload:,} bytes is only {len(frame):,} bytes long")
    head, descriptors = decode_header(frame[PREFIX.size : end], payload, limits)
    return Message(head, _read_arrays(descriptors, np.frombuffer(frame, np.uint8, payload, end), None, _new_buffer))


def send(connection: socket.socket, buffers: list[Buffer]) -> None:
    """Sends a whole frame, in as few system calls as possible."""
    views = [memoryview(buffer) for buffer in buffers]
    while views:
        drop_sent(views, connection.sendmsg(views[:MAX_BUFFERS]))


def drop_sent(views: list[memoryview], sent: int) -> None:
    """Removes the first `sent` bytes."""
    while views and sent >= len(views[0]):
        sent -= len(views.pop(0))
    if sent:
        views[0] = views[0][sent:]


def _new_buffer(size: int) -> np.ndarray:
    return np.empty(size, np.uint8)


def receive(
    connection: socket.socket,
    limits: Limits,
    find_shared: FindShared | None = None,
    prefix: bytes | None = None,
    allocate: Allocate = _new_buffer,
) -> Message | None:
    """Returns the next frame, or None if the peer closed the connection after the last frame.

    `prefix` is the frame's prefix, if it was read already. The payload is read into a buffer from `allocate`.
    """
    if prefix is None:
        prefix = bytes(_receive_into(connection, _new_buffer(PREFIX.size), at_start=True))
    if not prefix:
        return None
    header, size = read_prefix(prefix, limits)
    text = bytes(_receive_into(connection, _new_buffer(header)))
    head, descriptors = decode_header(text, size, limits)
    payload = _receive_into(connection, allocate(size))
    return Message(head, _read_arrays(descriptors, payload, find_shared, allocate))


def _receive_into(connection: socket.socket, buffer: np.ndarray, at_start: bool = False) -> np.ndarray:
    """Fills the buffer and returns it; returns an empty one if the peer closed the connection `at_start` of a frame."""
    received, size = 0, len(buffer)
    while received < size:
        count = connection.recv_into(buffer.data[received:], 0, socket.MSG_WAITALL)
        if not count and at_start and not received:
            return buffer[:0]
        if not count:
            raise WireError(f"the connection ended after {received:,} of {size:,} bytes")
        received += count
    return buffer


def _read_arrays(
    descriptors: tuple[ArrayDescriptor, ...], payload: np.ndarray, find_shared: FindShared | None, allocate: Allocate
) -> dict[str, np.ndarray]:
    """Returns the arrays of a frame: views of its payload or of shared memory, or decompressed into new buffers."""
    arrays: dict[str, np.ndarray] = {}
    offset = 0
    for each in descriptors:
        if each.location is not None:
            if find_shared is None:
                raise WireError("received a frame with an array in shared memory, but this connection shares none")
            data = find_shared(*each.location, each.stored_bytes)
        else:
            data = payload[offset : offset + each.stored_bytes]
            offset += align(each.stored_bytes)
            if each.encoding == "lz4":
                data = _decompress(data, each, allocate(each.array_bytes))
        arrays[each.name] = data.view(each.dtype).reshape(each.shape)
    return arrays


def _decompress(compressed: np.ndarray, descriptor: ArrayDescriptor, output: np.ndarray) -> np.ndarray:
    try:
        decompress(compressed, output)
        return output
    except ValueError:
        size = descriptor.stored_bytes
        raise WireError(f"array {descriptor.name!r}: its {size:,} compressed bytes cannot be decompressed") from None


def _to_contiguous(name: str, value: Any) -> np.ndarray:
    """Returns a contiguous array in little-endian byte order."""
    if type(value) is np.ndarray and value.flags.c_contiguous and value.dtype.str in DTYPES:
        return value
    array = np.asarray(value)
    if array.dtype.kind not in KINDS or array.dtype.newbyteorder("<").str not in DTYPES:
        raise WeftError(f"column {name!r} has dtype {array.dtype}: only booleans and numbers can be sent")
    shape = array.shape
    return np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(shape)
