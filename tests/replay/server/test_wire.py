"""Frames come back as they were; whatever is not a frame is refused before memory is taken for it."""

import json
import socket
import threading

import hypothesis.extra.numpy as arrays_of
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.errors import WeftError
from weft.replay.server import compress, wire

DTYPES = st.sampled_from(sorted(wire.DTYPES)).map(np.dtype)
SHAPES = arrays_of.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=9)
ARRAYS = st.dictionaries(st.text(max_size=20), arrays_of.arrays(DTYPES, SHAPES), max_size=6)


def joined(buffers):
    return b"".join(bytes(buffer) for buffer in buffers)


def same(left, right):
    return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()


class Always(compress.Packer):
    """Packs whatever is long enough to be packed at all."""

    def pack(self, name, flat):
        return compress._pack(flat) if len(flat) else None


@given(arrays=ARRAYS, packed=st.booleans())
def test_arrays_come_back_as_they_were(arrays, packed):
    frame = joined(wire.encode({"id": 7, "args": {"timeout": None}}, arrays, Always() if packed else None))
    message = wire.decode(frame)
    assert message.head == {"id": 7, "args": {"timeout": None}}
    assert list(message.arrays) == list(arrays)
    assert all(same(message.arrays[name], array) for name, array in arrays.items())


def test_arrays_not_in_one_piece_and_of_another_byte_order_come_back_equal():
    given_arrays = {"steps": np.arange(24).reshape(4, 6)[::2, ::-1], "big": np.arange(3, dtype=">f8")}
    found = wire.decode(joined(wire.encode({}, given_arrays))).arrays
    assert all(np.array_equal(found[name], array) for name, array in given_arrays.items())


@pytest.mark.parametrize(
    "array", [np.array([object()]), np.array(["text"]), np.array(0, "M8[s]"), np.zeros(2, "f4,i4")]
)
def test_only_numbers_are_sent(array):
    with pytest.raises(WeftError, match="column 'x' is of .*: only booleans and numbers"):
        wire.encode({}, {"x": array})


@given(arrays=ARRAYS, data=st.data())
def test_a_frame_that_was_cut_is_refused(arrays, data):
    frame = joined(wire.encode({"id": 1}, arrays))
    cut = data.draw(st.integers(0, len(frame) - 1))
    with pytest.raises(wire.WireError):
        wire.decode(frame[:cut])


@given(arrays=ARRAYS, data=st.data())
@settings(max_examples=400)
def test_a_frame_that_was_changed_is_read_or_refused_and_nothing_else(arrays, data):
    frame = bytearray(joined(wire.encode({"id": 1}, arrays, Always() if data.draw(st.booleans()) else None)))
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    limits = wire.Limits(header=1 << 16, frame=1 << 16, arrays=16)
    try:
        message = wire.decode(bytes(frame), limits)
    except wire.WireError:
        return
    assert sum(array.nbytes for array in message.arrays.values()) <= limits.frame


def described(*lines):
    return b"{}\n" + json.dumps(list(lines)).encode()


@pytest.mark.parametrize(
    ("header", "payload", "why"),
    [
        (b"[1]\n[]", 0, "not an object"),
        (b"{}\n{}", 0, "list of arrays"),
        (b"{}", 0, "not JSON"),
        (b"\xff{", 0, "not JSON"),
        (b"[" * 100_000, 0, "not JSON"),
        (described(["x", "<f4", [2], "raw", 4, None]), 64, "of 8 bytes came as 4"),
        (described(["x", "<f4", [1 << 40], "raw", 1 << 42, None]), 1 << 42, "more than"),
        (described(["x", "<f4", [1 << 61, 8], "raw", 0, None]), 0, "came as 0"),
        (described(["x", "<f4", [1 << 30], "lz4", 64, None]), 64, "came as 64"),
        (described(["x", "|O", [1], "raw", 8, None]), 64, "dtype that is not taken"),
        (described(["x", "<f4", [-1], "raw", 0, None]), 0, "shape that is none"),
        (described(["x", "<f4", [True], "raw", 4, None]), 64, "shape that is none"),
        (described(["x", "<f4", [1] * 33, "raw", 4, None]), 64, "shape that is none"),
        (described(["x", "<f4", [1], "raw", 4, None]), 4, "not as long as its payload"),
        (described(["x", "<f4", [0], "raw", 0, None], ["x", "<f4", [0], "raw", 0, None]), 0, "same name"),
        (described(["x", "<f4", [0], "zip", 0, None]), 0, "not known"),
        (described(["x", "<f4", [1], "shared", 4, [1]]), 0, "without its place"),
        (described(*[[str(i), "<f4", [0], "raw", 0, None] for i in range(2000)]), 0, "of 2,000 arrays"),
        (described(["x"]), 0, "six values"),
    ],
)
def test_a_header_that_cannot_be_is_refused(header, payload, why):
    with pytest.raises(wire.WireError, match=why):
        wire.read_header(header, payload, wire.Limits(frame=1 << 32))


def test_a_prefix_says_how_long_a_frame_is_before_any_of_it_is_taken():
    for prefix, why in [
        (wire.PREFIX.pack(b"HTTP", wire.VERSION, 0, 2, 0), "not a frame"),
        (wire.PREFIX.pack(wire.MAGIC, 9, 0, 2, 0), "version 9"),
        (wire.PREFIX.pack(wire.MAGIC, wire.VERSION, 0, 1 << 31, 0), "at most"),
        (wire.PREFIX.pack(wire.MAGIC, wire.VERSION, 0, 2, 1 << 50), "at most"),
    ]:
        with pytest.raises(wire.WireError, match=why):
            wire.read_prefix(prefix, wire.Limits())


def test_shared_memory_is_only_found_where_some_is_shared():
    placed = wire.Placed(np.zeros(4), 1, 0)
    with pytest.raises(wire.WireError, match="none is shared"):
        wire.decode(joined(wire.encode({}, {"x": placed})))


def test_frames_of_many_pieces_go_through_a_socket():
    left, right = socket.socketpair()
    arrays = {str(number): np.full(number % 7, number) for number in range(1000)} | {"large": np.arange(1 << 20)}
    sender = threading.Thread(target=wire.send, args=(left, wire.encode({"id": 3}, arrays)))
    sender.start()
    message = wire.receive(right, wire.Limits(arrays=2000))
    sender.join()
    left.close()
    assert message.head == {"id": 3} and all(same(message.arrays[name], array) for name, array in arrays.items())
    assert wire.receive(right, wire.Limits()) is None
    right.close()


def test_a_connection_that_ends_within_a_frame_is_an_error():
    left, right = socket.socketpair()
    left.sendall(joined(wire.encode({"id": 1}, {"x": np.zeros(9)}))[:-3])
    left.close()
    with pytest.raises(wire.WireError, match="ended after"):
        wire.receive(right, wire.Limits())
    right.close()


def test_a_column_is_packed_while_that_pays_and_again_when_its_data_change():
    packer = compress.Packer(link=1e-6)  # a slow one, so that only the data decide
    noise = np.random.default_rng(0).integers(0, 256, 1 << 16).astype(np.uint8)
    flat = np.zeros(1 << 16, np.uint8)
    assert packer.pack("noise", noise) is None
    assert len(packer.pack("flat", flat)) < 1000
    for _ in range(compress.EVERY):
        assert packer.pack("flat", noise) is None
    assert packer.measured["flat"].ratio > 0.9 and packer.pack("flat", flat) is None
    for _ in range(compress.EVERY - 1):
        packer.pack("flat", flat)
    assert len(packer.pack("flat", flat)) < 1000


def test_nothing_is_packed_on_a_link_that_is_quicker_than_packing():
    packer = compress.Packer(link=1e-15)
    assert packer.pack("flat", np.zeros(1 << 16, np.uint8)) is None
    packer.sent(1 << 20, 10.0)
    assert packer.link > 1e-7
