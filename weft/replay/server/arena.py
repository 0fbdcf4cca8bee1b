"""Arrays allocated one after the other in one block of memory, such as a shared segment.

A server reads sampled steps directly into the arena that the reply is sent from: the segment that the client leased for
it, or reusable memory of the server. This saves a copy and the allocation of new memory, which costs as much.

>>> arena = Arena(np.zeros(1024, np.uint8))
>>> reward = arena.allocate("reward", (2,), np.dtype(np.float32))
>>> located = arena.locate({"reward": reward, "key": np.arange(2)}, segment=3)  # copies `key`, which is not there yet
>>> [(name, array.segment, array.offset) for name, array in located.items()]
[('reward', 3, 0), ('key', 3, 64)]
"""

import math
from collections.abc import Mapping

import numpy as np

from weft.replay.server.frame_header import align
from weft.replay.server.wire import SharedArray


class Arena:
    """Allocates arrays in a block of memory. Arrays that do not fit get memory of their own."""

    def __init__(self, memory: np.ndarray) -> None:
        self.memory, self.used = memory, 0
        self.arrays: dict[str, tuple[np.ndarray, int]] = {}
        """The named arrays in this arena, with their offsets."""

    def allocate(self, name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Returns an uninitialised array, which will be sent under this name."""
        offset = self.used
        array = self._allocate(shape, dtype)
        if self.used > offset:
            self.arrays[name] = array, offset
        return array

    def locate(self, arrays: Mapping[str, np.ndarray], segment: int) -> dict[str, np.ndarray | SharedArray]:
        """Returns the arrays with their locations in the segment that this arena is in.

        Arrays that are not in the arena yet are copied to it; those that do not fit are returned as they are.
        """
        located: dict[str, np.ndarray | SharedArray] = {}
        for name, array in arrays.items():
            allocated, offset = self.arrays.get(name, (None, self.used))
            if allocated is not array:
                offset = self.used
                np.copyto(self._allocate(array.shape, array.dtype), array)
                if self.used == offset and array.nbytes:
                    located[name] = array
                    continue
            located[name] = SharedArray(array, segment, offset)
        return located

    def _allocate(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        size = math.prod(shape) * dtype.itemsize
        if self.used + size > len(self.memory):
            return np.empty(shape, dtype)
        part = self.memory[self.used : self.used + size]
        self.used += align(size)
        return part.view(dtype).reshape(shape)


def arena_bytes(arrays: Mapping[str, np.ndarray]) -> int:
    """Returns the bytes that the arrays take in an arena."""
    return sum(align(array.nbytes) for array in arrays.values())
