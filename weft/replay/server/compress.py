"""Compression of columns on their way, for as long as it pays.

Whether it pays depends on the data and on the link. A `Packer` belongs to one connection: it knows how long the link
takes for a byte (told by whoever sends), and now and then it measures, on a piece of a column, how far that column
shrinks and how long packing and unpacking take. A column is packed while that is quicker than to send it as it is:

>>> Measured(ratio=0.1, seconds=1e-9).pays(link=8e-9), Measured(ratio=0.99, seconds=1e-9).pays(link=8e-9)
(True, False)
>>> Measured(ratio=0.1, seconds=1e-9).pays(link=0.2e-9)
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

PIECE = 1 << 16
"""Bytes of a column that are measured."""
TRIES = 6
"""How often that is done for one measurement; the quickest counts, for somebody else may have had the processor."""
EVERY = 64
"""Messages between two measurements of a column."""
LEAST = 4096
"""Bytes below which a column is sent as it is."""
MOST = 1 << 30
"""Bytes above which it is: the format's own limit is near."""
MOST_GAIN = 255
"""The format cannot shrink anything further."""
PART = 1 << 17
"""Bytes that are packed as one: few enough that what they become stays in the processor's cache."""
ACCELERATION = 32
"""Several times as quick as the default on frames of a game, and they are as small."""
SLOW_LINK, QUICK_LINK = 8e-9, 0.2e-9
"""Seconds for a byte that are assumed until some were sent: a gigabit a second, and what one host takes for itself."""
LEARN = 1 << 20
"""Bytes of a frame from which it is learned from: a smaller one is gone before it has arrived."""

AVAILABLE = block is not None
"""Whether `lz4` is installed (the extra `replay`)."""


class Measured(NamedTuple):
    """What a piece of a column showed."""

    ratio: float
    """Packed bytes to bytes."""
    seconds: float
    """To pack and unpack a byte."""

    def pays(self, link: float) -> bool:
        """Whether packing is quicker than sending what it saves, at so many seconds for a byte.

        Both sides have to do with every byte, so what is saved on the way is saved twice.
        """
        return self.seconds < (1 - self.ratio) * 2 * link


@dataclass
class Packer:
    """Packs the columns of one connection, each for as long as it pays."""

    link: float = SLOW_LINK
    """Seconds that the link takes for a byte."""
    seen: dict[str, int] = field(default_factory=dict)
    """Messages of each column so far."""
    measured: dict[str, Measured] = field(default_factory=dict)

    def pack(self, name: str, flat: np.ndarray) -> bytes | None:
        """The packed bytes; None where the column is better sent as it is."""
        if not LEAST <= len(flat) <= MOST:
            return None
        count = self.seen.get(name, 0)
        self.seen[name] = count + 1
        if count % EVERY == 0:
            self.measured[name] = measure(flat, count // EVERY)
        packed = _pack(flat) if self.measured[name].pays(self.link) else None
        return packed if packed is not None and len(packed) < len(flat) else None

    def sent(self, size: int, seconds: float) -> None:
        """Learn from what was sent: the mean of what the last frames took, small ones left out."""
        if size >= LEARN:
            self.link += 0.1 * (seconds / size - self.link)


def packer(peer: str) -> Packer:
    """For a connection to this host's address."""
    return Packer(QUICK_LINK if peer.startswith("127.") or peer in ("::1", "::ffff:127.0.0.1") else SLOW_LINK)


def measure(flat: np.ndarray, turn: int = 0) -> Measured:
    """Pack and unpack a piece of a column; each turn a different one."""
    pieces = max(1, len(flat) // PIECE)
    start = (turn * 7919 % pieces) * PIECE
    piece = flat[start : start + PIECE]
    packed, seconds = b"", float("inf")
    for _ in range(TRIES):
        began = time.perf_counter()
        packed = _pack(piece)
        unpack(np.frombuffer(packed, np.uint8), np.empty(len(piece), np.uint8))
        seconds = min(seconds, time.perf_counter() - began)
    return Measured(len(packed) / len(piece), seconds / len(piece))


def unpack(packed: np.ndarray, flat: np.ndarray) -> None:
    """Fill `flat`; a ValueError where it is not exactly that which was packed."""
    if block is None:
        raise ValueError("lz4 is not installed")
    count = -(-len(flat) // PART)
    sizes = packed[: 4 * count].view("<u4").tolist() if len(packed) >= 4 * count else []
    if 4 * count + sum(sizes) != len(packed):
        raise ValueError("not packed bytes")
    start = 4 * count
    for number, length in enumerate(sizes):
        part = flat[number * PART : (number + 1) * PART]
        part[:] = _unpack_part(packed[start : start + length], len(part))
        start += length


def _unpack_part(packed: np.ndarray, size: int) -> np.ndarray:
    assert block is not None
    try:
        part = block.decompress(packed, uncompressed_size=size)
    except (block.LZ4BlockError, ValueError, MemoryError) as error:
        raise ValueError("not packed bytes") from error
    if len(part) != size:
        raise ValueError(f"{len(part)} bytes, not {size}")
    return np.frombuffer(part, np.uint8)


def _pack(flat: np.ndarray) -> bytes:
    assert block is not None, "a packer is made only where lz4 is installed"
    parts = [
        block.compress(flat[start : start + PART], mode="fast", acceleration=ACCELERATION, store_size=False)
        for start in range(0, len(flat), PART)
    ]
    return b"".join([np.array([len(part) for part in parts], "<u4").tobytes(), *parts])
