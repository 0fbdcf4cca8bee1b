"""Compresses columns on a connection for as long as that saves time.

Whether compression saves time depends on the data and on the connection. Each connection has a `Compressor`, which
tracks how long the connection takes to send a byte. For every column, once in `MEASURE_EVERY` messages, it measures on
a piece of the column how far it shrinks and how long compressing and decompressing take. The column is then compressed
while that is faster than sending it uncompressed:

>>> fast_to_compress = Measurement(ratio=0.1, seconds_per_byte=1e-9)
>>> fast_to_compress.saves_time(send_seconds=8e-9), fast_to_compress.saves_time(send_seconds=0.2e-9)
(True, False)
>>> Measurement(ratio=0.99, seconds_per_byte=1e-9).saves_time(send_seconds=8e-9)
False
"""

import time
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

try:
    import lz4.block as block
except ImportError:
    block = None

PIECE_BYTES = 1 << 16
"""Bytes of a column that one measurement compresses."""
TRIES = 6
"""Repetitions of one measurement. The fastest counts, because other load only slows a repetition down."""
MEASURE_EVERY = 64
"""Messages between two measurements of a column."""
MIN_BYTES = 4096
"""Shorter columns are sent uncompressed."""
MAX_BYTES = 1 << 30
"""Longer columns are sent uncompressed: LZ4 cannot compress much more than this at once."""
MAX_RATIO = 255
"""The highest ratio of uncompressed to compressed bytes that LZ4 can reach."""
BLOCK_BYTES = 1 << 17
"""Bytes that are compressed as one block: few enough that the result stays in the processor's cache."""
ACCELERATION = 32
"""LZ4's speed setting. On Atari frames it is several times as fast as the default, and the result is as small."""
SLOW_CONNECTION, FAST_CONNECTION = 8e-9, 0.2e-9
"""Initial estimates of the seconds to send a byte: over 1 Gbit/s Ethernet, and over the loopback interface."""
MIN_TIMED_BYTES = 1 << 20
"""Shorter frames do not update the estimate: the socket's buffer takes them before they are transmitted."""

AVAILABLE = block is not None
"""Whether `lz4` is installed (the extra `replay`)."""


class Measurement(NamedTuple):
    """How well a column compresses."""

    ratio: float
    """Compressed bytes over uncompressed bytes."""
    seconds_per_byte: float
    """To compress and decompress."""

    def saves_time(self, send_seconds: float) -> bool:
        """Whether compressing is faster than sending the bytes it saves, at `send_seconds` per byte.

        Sender and receiver both spend time on each byte sent, so a byte saved counts twice.
        """
        return self.seconds_per_byte < (1 - self.ratio) * 2 * send_seconds


@dataclass
class Compressor:
    """Compresses the columns of one connection, each for as long as that saves time."""

    send_seconds: float = SLOW_CONNECTION
    """Estimated seconds to send a byte."""
    message_counts: dict[str, int] = field(default_factory=dict)
    """Messages so far, by column."""
    measurements: dict[str, Measurement] = field(default_factory=dict)
    """The last measurement, by column."""

    def compress(self, name: str, column: np.ndarray) -> bytes | None:
        """Returns the compressed bytes, or None where the column should be sent uncompressed."""
        if not MIN_BYTES <= len(column) <= MAX_BYTES:
            return None
        count = self.message_counts.get(name, 0)
        self.message_counts[name] = count + 1
        if count % MEASURE_EVERY == 0:
            self.measurements[name] = measure(column, count // MEASURE_EVERY)
        compressed = compress_blocks(column) if self.measurements[name].saves_time(self.send_seconds) else None
        return compressed if compressed is not None and len(compressed) < len(column) else None

    def record_send(self, size: int, seconds: float) -> None:
        """Updates the estimated seconds per byte, a moving average over frames that are large enough."""
        if size >= MIN_TIMED_BYTES:
            self.send_seconds += 0.1 * (seconds / size - self.send_seconds)


def compressor_for(peer: str) -> Compressor:
    """Returns the compressor of a new connection to the IP address `peer`."""
    loopback = peer.startswith("127.") or peer in ("::1", "::ffff:127.0.0.1")
    return Compressor(FAST_CONNECTION if loopback else SLOW_CONNECTION)


def measure(column: np.ndarray, number: int = 0) -> Measurement:
    """Compresses and decompresses one piece of a column; consecutive numbers choose different pieces."""
    pieces = max(1, len(column) // PIECE_BYTES)
    start = (number * 7919 % pieces) * PIECE_BYTES
    piece = column[start : start + PIECE_BYTES]
    compressed, seconds = b"", float("inf")
    for _ in range(TRIES):
        began = time.perf_counter()
        compressed = compress_blocks(piece)
        decompress(np.frombuffer(compressed, np.uint8), np.empty(len(piece), np.uint8))
        seconds = min(seconds, time.perf_counter() - began)
    return Measurement(len(compressed) / len(piece), seconds / len(piece))


def compress_blocks(data: np.ndarray) -> bytes:
    """Returns the compressed length of every block (uint32, little-endian), then the compressed blocks."""
    assert block is not None, "compressors are created only if lz4 is installed"
    blocks = [
        block.compress(data[start : start + BLOCK_BYTES], mode="fast", acceleration=ACCELERATION, store_size=False)
        for start in range(0, len(data), BLOCK_BYTES)
    ]
    return b"".join([np.array([len(each) for each in blocks], "<u4").tobytes(), *blocks])


def decompress(compressed: np.ndarray, output: np.ndarray) -> None:
    """Fills `output`; raises ValueError unless the compressed bytes decompress to exactly its length."""
    if block is None:
        raise ValueError("lz4 is not installed")
    count = -(-len(output) // BLOCK_BYTES)
    sizes = compressed[: 4 * count].view("<u4").tolist() if len(compressed) >= 4 * count else []
    if 4 * count + sum(sizes) != len(compressed):
        raise ValueError("not compressed bytes")
    start = 4 * count
    for number, length in enumerate(sizes):
        part = output[number * BLOCK_BYTES : (number + 1) * BLOCK_BYTES]
        part[:] = _decompress_block(compressed[start : start + length], len(part))
        start += length


def _decompress_block(compressed: np.ndarray, size: int) -> np.ndarray:
    assert block is not None
    try:
        data = block.decompress(compressed, uncompressed_size=size)
    except (block.LZ4BlockError, ValueError, MemoryError) as error:
        raise ValueError("not compressed bytes") from error
    if len(data) != size:
        raise ValueError(f"{len(data)} bytes, not {size}")
    return np.frombuffer(data, np.uint8)
