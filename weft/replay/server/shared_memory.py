"""Shared memory between a client and a server on one host, for the arrays of requests and replies.

The client creates *segments* of anonymous memory and sends their file descriptors to the server through a Unix socket.
The memory is freed when both processes have closed it or ended. Segments are sealed: their size cannot change, so
neither process can make the other read beyond their end. Only the client decides how a segment is used. It leases one
for each large reply; the server writes the reply's arrays there, and the caller gets views of the same memory. When the
last view is garbage-collected, the segment can be leased again.

>>> pool = SegmentPool(max_bytes=1 << 20)
>>> array = pool.lease(1000).array
>>> other = pool.lease(1000).array  # the first segment is still in use
>>> pool.created
2
>>> del array, other
>>> reused = pool.lease(1000)
>>> pool.created
2
>>> pool.close()
"""

import fcntl
import mmap
import os
import threading
import weakref
from collections import deque
from typing import Any

import numpy as np

from weft.replay.server.frame_header import WireError

SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL if hasattr(fcntl, "F_SEAL_SEAL") else 0
MIN_SEGMENT_BYTES = 1 << 16
DEFAULT_POOL_BYTES = 1 << 30
MAX_SEGMENTS = 64
"""Segments of one pool."""

AVAILABLE = hasattr(os, "memfd_create") and bool(SEALS)
"""Only Linux has sealed memory; elsewhere all arrays go through the socket."""


class Segment:
    """A block of shared memory, mapped into this process."""

    def __init__(self, file: int, size: int, number: int) -> None:
        self.file, self.size, self.number = file, size, number
        self.memory = np.frombuffer(mmap.mmap(file, size), np.uint8)

    @staticmethod
    def create(size: int, number: int) -> "Segment":
        file = os.memfd_create("weft-replay", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
        os.ftruncate(file, size)
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, SEALS)
        return Segment(file, size, number)

    @staticmethod
    def from_file(file: int, number: int, max_bytes: int) -> "Segment":
        """Maps the segment of another process; raises if it is not sealed or too large."""
        try:
            seals = fcntl.fcntl(file, fcntl.F_GET_SEALS)
        except OSError:
            seals = 0
        size = os.fstat(file).st_size
        if seals & SEALS != SEALS or not 0 < size <= max_bytes:
            raise WireError(f"received a segment of {size:,} bytes that is not sealed or exceeds {max_bytes:,} bytes")
        return Segment(file, size, number)

    def close(self) -> None:
        """Closes the file. The memory is unmapped when no array uses it any more."""
        if self.file >= 0:
            os.close(self.file)
            self.file = -1
        self.memory = self.memory[:0]

    def read(self, offset: int, size: int) -> np.ndarray:
        """Returns a view of `size` bytes."""
        if offset + size > self.size:
            raise WireError(f"bytes {offset:,} to {offset + size:,} are outside a segment of {self.size:,} bytes")
        return self.memory[offset : offset + size]


class Lease:
    """A segment that is in use until `array` and all views of it are garbage-collected."""

    def __init__(self, segment: Segment, pool: "SegmentPool") -> None:
        self.segment = segment
        owner = _ArrayOwner(segment.memory)
        weakref.finalize(owner, pool.give_back, segment).atexit = False
        self.array = np.asarray(owner)

    def read(self, number: int, offset: int, size: int) -> np.ndarray:
        """Returns a view of a reply's bytes, at the location that the server has sent."""
        if number != self.segment.number or offset + size > self.segment.size:
            raise WireError("received a reply that is outside the memory leased for it")
        return self.array[offset : offset + size]


class SegmentPool:
    """The segments of one client, which it leases again and again. Thread-safe."""

    def __init__(self, max_bytes: int = DEFAULT_POOL_BYTES) -> None:
        self.max_bytes = max_bytes
        self.segments: dict[int, Segment] = {}
        self.created = 0
        self.lock = threading.Lock()
        self.closed = False
        # `give_back` may run at any point of any thread, during garbage collection, so it must not take the lock.
        self.idle: deque[Segment] = deque()
        self.dropped: deque[int] = deque()
        """Numbers of closed segments. The server is told to close them as well."""

    def lease(self, size: int) -> Lease | None:
        """Leases a segment of at least `size` bytes; returns None if that would exceed the pool's limits."""
        with self.lock:
            segment = self._pop_idle(size) or self._create(size)
            return None if segment is None else Lease(segment, self)

    def give_back(self, segment: Segment) -> None:
        if self.closed:
            segment.close()
        else:
            self.idle.append(segment)

    def close(self) -> None:
        with self.lock:
            self.closed = True
            while self.idle:
                self.idle.popleft().close()
            self.segments.clear()

    def _pop_idle(self, size: int) -> Segment | None:
        """Returns an idle segment that fits, the last used one first because it is most likely in the cache."""
        for _ in range(len(self.idle)):
            segment = self.idle.pop()
            if size <= segment.size <= max(4 * size, MIN_SEGMENT_BYTES):
                return segment
            self.idle.appendleft(segment)
        return None

    def _create(self, size: int) -> Segment | None:
        """Creates a segment, after closing idle ones to make room for it."""
        size = max(MIN_SEGMENT_BYTES, 1 << (size - 1).bit_length())
        while self.idle and not self._has_room(size):
            unsuitable = self.idle.popleft()
            del self.segments[unsuitable.number]
            self.dropped.append(unsuitable.number)
            unsuitable.close()
        if self.closed or not self._has_room(size):
            return None
        self.created += 1
        self.segments[self.created] = Segment.create(size, self.created)
        return self.segments[self.created]

    def _has_room(self, size: int) -> bool:
        used = sum(segment.size for segment in self.segments.values())
        return used + size <= self.max_bytes and len(self.segments) < MAX_SEGMENTS


class _ArrayOwner:
    """The base object of a lease's arrays: NumPy keeps it alive as long as any of them exists."""

    def __init__(self, memory: np.ndarray) -> None:
        self.memory = memory
        self.__array_interface__: dict[str, Any] = memory.__array_interface__
