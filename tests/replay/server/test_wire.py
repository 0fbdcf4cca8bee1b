"""Encoding and decoding a frame preserves it; invalid frames are rejected before memory is allocated."""

import socket
import threading

import hypothesis.extra.numpy as arrays_of
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.errors import WeftError
from weft.replay.server import wire
from weft.replay.server.compression import Compressor, compress_blocks
from weft.replay.server.frame_header import DTYPES, Limits, WireError

ANY_DTYPE = st.sampled_from(sorted(DTYPES)).map(np.dtype)
SHAPES = arrays_of.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=9)
ARRAYS = st.dictionaries(st.text(max_size=20), arrays_of.arrays(ANY_DTYPE, SHAPES), max_size=6)


def joined(buffers):
    return b"".join(bytes(buffer) for buffer in buffers)


def identical(left, right):
    return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()


class AlwaysCompress(Compressor):
    """Compresses every column that is not empty."""

    def compress(self, name, column):
        return compress_blocks(column) if len(column) else None


@given(arrays=ARRAYS, compressed=st.booleans())
def test_encoding_and_decoding_preserves_arrays(arrays, compressed):
    frame = joined(wire.encode({"id": 7, "args": {"timeout": None}}, arrays, AlwaysCompress() if compressed else None))
    message = wire.decode(frame)
    assert message.head == {"id": 7, "args": {"timeout": None}}
    assert list(message.arrays) == list(arrays)
    assert all(identical(message.arrays[name], array) for name, array in arrays.items())


def test_arrays_that_are_not_contiguous_or_big_endian_are_preserved():
    given_arrays = {"steps": np.arange(24).reshape(4, 6)[::2, ::-1], "big": np.arange(3, dtype=">f8")}
    found = wire.decode(joined(wire.encode({}, given_arrays))).arrays
    assert all(np.array_equal(found[name], array) for name, array in given_arrays.items())


@pytest.mark.parametrize(
    "array", [np.array([object()]), np.array(["text"]), np.array(0, "M8[s]"), np.zeros(2, "f4,i4")]
)
def test_only_booleans_and_numbers_can_be_sent(array):
    with pytest.raises(WeftError, match="column 'x' has dtype .*: only booleans and numbers"):
        wire.encode({}, {"x": array})


@given(arrays=ARRAYS, data=st.data())
def test_an_incomplete_frame_is_rejected(arrays, data):
    frame = joined(wire.encode({"id": 1}, arrays))
    cut = data.draw(st.integers(0, len(frame) - 1))
    with pytest.raises(WireError):
        wire.decode(frame[:cut])


@given(arrays=ARRAYS, data=st.data())
@settings(max_examples=400)
def test_a_corrupt_frame_is_decoded_within_the_limits_or_rejected(arrays, data):
    frame = bytearray(joined(wire.encode({"id": 1}, arrays, AlwaysCompress() if data.draw(st.booleans()) else None)))
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    limits = Limits(header=1 << 16, frame=1 << 16, arrays=16)
    try:
        message = wire.decode(bytes(frame), limits)
    except WireError:
        return
    assert sum(array.nbytes for array in message.arrays.values()) <= limits.frame


def test_an_invalid_prefix_is_rejected():
    for prefix, why in [
        (wire.PREFIX.pack(b"HTTP", wire.VERSION, 0, 2, 0), "not a frame"),
        (wire.PREFIX.pack(wire.MAGIC, 9, 0, 2, 0), "version 9"),
        (wire.PREFIX.pack(wire.MAGIC, wire.VERSION, 0, 1 << 31, 0), "at most"),
        (wire.PREFIX.pack(wire.MAGIC, wire.VERSION, 0, 2, 1 << 50), "at most"),
    ]:
        with pytest.raises(WireError, match=why):
            wire.read_prefix(prefix, Limits())


def test_a_shared_array_is_rejected_where_no_memory_is_shared():
    shared = wire.SharedArray(np.zeros(4), 1, 0)
    with pytest.raises(WireError, match="this connection shares none"):
        wire.decode(joined(wire.encode({}, {"x": shared})))


def test_frames_of_many_arrays_are_sent_through_a_socket():
    left, right = socket.socketpair()
    arrays = {str(number): np.full(number % 7, number) for number in range(1000)} | {"large": np.arange(1 << 20)}
    sender = threading.Thread(target=wire.send, args=(left, wire.encode({"id": 3}, arrays)))
    sender.start()
    message = wire.receive(right, Limits(arrays=2000))
    sender.join()
    left.close()
    assert message.head == {"id": 3} and all(identical(message.arrays[name], array) for name, array in arrays.items())
    assert wire.receive(right, Limits()) is None
    right.close()


def test_a_connection_that_ends_within_a_frame_is_an_error():
    left, right = socket.socketpair()
    left.sendall(joined(wire.encode({"id": 1}, {"x": np.zeros(9)}))[:-3])
    left.close()
    with pytest.raises(WireError, match="ended after"):
        wire.receive(right, Limits())
    right.close()
