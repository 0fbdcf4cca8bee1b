"""Memory that a client and a server on one host both see, for the arrays of requests and replies.

The client makes a *segment*: memory without a name, handed over as an open file through a Unix socket, so it is gone
when both are, however they end. It is sealed: its size cannot change any more, so neither side can make the other read
where nothing is. The client alone decides what a segment is used for: it lends one to a request, the server writes the
reply's arrays there, and they come to the caller as they lie. When the last array of a reply is let go of, the
segment is free for another one.

>>> pool = Pool(most=1 << 20)
>>> array = pool.lease(1000).array
>>> other = pool.lease(1000).array  # somebody still has the first one's
>>> pool.made
2
>>> del array, other
>>> again = pool.lease(1000)
>>> pool.made
2
>>> pool.close()
"""

import fcntl
import math
import mmap
import os
import threading
import weakref
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from weft.replay.server.wire import ALIGNMENT, Placed, WireError

SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL if hasattr(fcntl, "F_SEAL_SEAL") else 0
LEAST = 1 << 16
"""Bytes of the smallest segment."""
MOST = 1 << 30
"""Bytes that a client takes in all, unless told."""
SEGMENTS = 64
"""How many of them one connection may have."""

AVAILABLE = hasattr(os, "memfd_create") and bool(SEALS)
"""Only Linux has sealed memory; elsewhere everything goes through the socket."""


class Segment:
    """One piece of shared memory, as one side sees it."""

    def __init__(self, file: int, size: int, number: int) -> None:
        self.file, self.size, self.number = file, size, number
        self.memory = np.frombuffer(mmap.mmap(file, size), np.uint8)

    @staticmethod
    def new(size: int, number: int) -> "Segment":
        file = os.memfd_create("weft-replay", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
        os.ftruncate(file, size)
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, SEALS)
        return Segment(file, size, number)

    @staticmethod
    def of(file: int, number: int, most: int) -> "Segment":
        """The segment that another process handed over; refused where it could shrink or is too large."""
        try:
            seals = fcntl.fcntl(file, fcntl.F_GET_SEALS)
        except OSError:
            seals = 0
        size = os.fstat(file).st_size
        if seals & SEALS != SEALS or not 0 < size <= most:
            raise WireError(f"a segment of {size:,} bytes came that is not sealed or is over {most:,}")
        return Segment(file, size, number)

    def close(self) -> None:
        """Let go of it; the memory goes with the last array that lies in it."""
        if self.file >= 0:
            os.close(self.file)
            self.file = -1
        self.memory = self.memory[:0]

    def part(self, offset: int, size: int) -> np.ndarray:
        if offset + size > self.size:
            raise WireError(f"bytes {offset:,} to {offset + size:,} of a segment of {self.size:,} were asked for")
        return self.memory[offset : offset + size]


class Lease:
    """A segment that is lent until nobody has `array`, or a view of it, any more."""

    def __init__(self, segment: Segment, pool: "Pool") -> None:
        self.segment = segment
        owner = _Owner(segment.memory)
        weakref.finalize(owner, pool.give_back, segment).atexit = False
        self.array = np.asarray(owner)

    def find(self, number: int, offset: int, size: int) -> np.ndarray:
        """Bytes of a reply that was written here."""
        if number != self.segment.number or offset + size > self.segment.size:
            raise WireError("a reply came that lies where it was not asked to")
        return self.array[offset : offset + size]


class Pool:
    """The segments of one client, lent again and again."""

    def __init__(self, most: int = MOST) -> None:
        self.most = most
        self.segments: dict[int, Segment] = {}
        self.made = 0
        self.lock = threading.Lock()
        self.closed = False
        # Arrays are let go of at any moment, in any thread, so what happens then takes no lock.
        self.free: deque[Segment] = deque()
        self.dropped: deque[int] = deque()
        """Numbers of segments that the server need not keep any longer."""

    def lease(self, size: int) -> Lease | None:
        """A segment of at least so many bytes; None where that would be more memory than is allowed."""
        with self.lock:
            found = self._free(size) or self._new(size)
            return None if found is None else Lease(found, self)

    def give_back(self, segment: Segment) -> None:
        if self.closed:
            segment.close()
        else:
            self.free.append(segment)

    def close(self) -> None:
        with self.lock:
            self.closed = True
            while self.free:
                self.free.popleft().close()
            self.segments.clear()

    def _free(self, size: int) -> Segment | None:
        """One that is free and large enough, but not four times as large; the last used, which is likeliest cached."""
        for _ in range(len(self.free)):
            segment = self.free.pop()
            if size <= segment.size <= max(4 * size, LEAST):
                return segment
            self.free.appendleft(segment)
        return None

    def _new(self, size: int) -> Segment | None:
        size = max(LEAST, 1 << (size - 1).bit_length())
        while self.free and not self._room(size):
            unfit = self.free.popleft()
            del self.segments[unfit.number]
            self.dropped.append(unfit.number)
            unfit.close()
        if self.closed or not self._room(size):
            return None
        self.made += 1
        self.segments[self.made] = Segment.new(size, self.made)
        return self.segments[self.made]

    def _room(self, size: int) -> bool:
        taken = sum(segment.size for segment in self.segments.values())
        return taken + size <= self.most and len(self.segments) < SEGMENTS


def span(arrays: Mapping[str, np.ndarray]) -> int:
    """Bytes that arrays take in a segment, one after the other."""
    return sum(_aligned(array.nbytes) for array in arrays.values())


def lay_out(arrays: Mapping[str, np.ndarray], segment: Segment) -> dict[str, Placed]:
    """Copies of arrays in a segment, one after the other."""
    room = Room(segment.memory)
    placed: dict[str, Placed] = {}
    for name, array in arrays.items():
        offset = room.taken
        np.copyto(room.take(array.shape, array.dtype), array)
        placed[name] = Placed(array, segment.number, offset)
    return placed


class Room:
    """Memory that arrays are put into, one after the other; those that do not fit get memory of their own."""

    def __init__(self, memory: np.ndarray) -> None:
        self.memory, self.taken = memory, 0
        self.arrays: dict[str, tuple[np.ndarray, int]] = {}
        """By name, what was put here, and where."""

    def take(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        size = math.prod(shape) * dtype.itemsize
        if self.taken + size > len(self.memory):
            return np.empty(shape, dtype)
        part = self.memory[self.taken : self.taken + size]
        self.taken += _aligned(size)
        return part.view(dtype).reshape(shape)

    def new(self, name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """An array to be filled, which will be sent under this name."""
        offset = self.taken
        array = self.take(shape, dtype)
        if self.taken > offset:
            self.arrays[name] = array, offset
        return array

    def placed(self, arrays: Mapping[str, np.ndarray], number: int) -> dict[str, np.ndarray | Placed]:
        """Arrays for a frame: as places in the segment of this number, copied there if they are not yet."""
        result: dict[str, np.ndarray | Placed] = {}
        for name, array in arrays.items():
            here, offset = self.arrays.get(name, (None, self.taken))
            if here is not array:
                offset = self.taken
                np.copyto(self.take(array.shape, array.dtype), array)
                if self.taken == offset and array.nbytes:
                    result[name] = array
                    continue
            result[name] = Placed(array, number, offset)
        return result


class _Owner:
    """What the arrays of a lease hang on: NumPy keeps it for as long as any of them is there."""

    def __init__(self, memory: np.ndarray) -> None:
        self.memory = memory
        self.__array_interface__: dict[str, Any] = memory.__array_interface__


def _aligned(size: int) -> int:
    return size + -size % ALIGNMENT
