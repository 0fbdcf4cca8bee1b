"""Invalid headers are rejected before memory is allocated."""

import json

import pytest

from weft.replay.server.frame_header import Limits, WireError, decode_header


def header(*descriptions):
    return b"{}\n" + json.dumps(list(descriptions)).encode()


@pytest.mark.parametrize(
    ("text", "payload", "why"),
    [
        (b"[1]\n[]", 0, "not a JSON object"),
        (b"{}\n{}", 0, "without a list of arrays"),
        (b"{}", 0, "not JSON"),
        (b"\xff{", 0, "not JSON"),
        (b"[" * 100_000, 0, "not JSON"),
        (header(["x", "<f4", [2], "raw", 4, None]), 64, "of 8 bytes is stored in 4 bytes"),
        (header(["x", "<f4", [1 << 40], "raw", 1 << 42, None]), 1 << 42, "more than"),
        (header(["x", "<f4", [1 << 61, 8], "raw", 0, None]), 0, "is stored in 0 bytes"),
        (header(["x", "<f4", [1 << 30], "lz4", 64, None]), 64, "is stored in 64 bytes"),
        (header(["x", "|O", [1], "raw", 8, None]), 64, "unsupported dtype"),
        (header(["x", "<f4", [-1], "raw", 0, None]), 0, "invalid shape"),
        (header(["x", "<f4", [True], "raw", 4, None]), 64, "invalid shape"),
        (header(["x", "<f4", [1] * 33, "raw", 4, None]), 64, "invalid shape"),
        (header(["x", "<f4", [1], "raw", 4, None]), 4, "a payload of 4 bytes: its header describes 64 bytes"),
        (header(["x", "<f4", [0], "raw", 0, None], ["x", "<f4", [0], "raw", 0, None]), 0, "same name"),
        (header(["x", "<f4", [0], "zip", 0, None]), 0, "unknown encoding"),
        (header(["x", "<f4", [1], "shared", 4, [1]]), 0, "location is missing"),
        (header(*[[str(i), "<f4", [0], "raw", 0, None] for i in range(2000)]), 0, "of 2,000 arrays"),
        (header(["x"]), 0, "six values"),
    ],
)
def test_an_invalid_header_is_rejected(text, payload, why):
    with pytest.raises(WireError, match=why):
        decode_header(text, payload, Limits(frame=1 << 32))
