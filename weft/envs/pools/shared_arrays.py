"""Arrays in memory that several processes share.

The memory is an open file without a name, which child processes inherit. It is freed when the last process that has it
open ends, however it ends. Worker processes import this module without the rest of weft (see `worker_main`).

>>> shared = SharedArrays({"reward": [((3,), "<f8")], "obs": [((3, 2), "|u1"), ((3,), "<f4")]})
>>> shared["reward"][0][1] = 0.5
>>> SharedArrays(shared.specs, shared.file)["reward"][0].tolist()
[0.0, 0.5, 0.0]
>>> shared.close()
"""

import mmap
import os
import tempfile
from collections.abc import Mapping

import numpy as np

ALIGNMENT = 64

Specs = Mapping[str, list[tuple[tuple[int, ...], str]]]
"""The shape and dtype of each array, in lists by name."""


class SharedArrays:
    """Named lists of arrays in one memory map: a new one, or that of an open file."""

    def __init__(self, specs: Specs, file: int | None = None) -> None:
        self.specs = specs
        offsets, size = _offsets(specs)
        self.file = _new_file(size) if file is None else file
        memory = mmap.mmap(self.file, size)
        self._arrays = {
            name: [
                np.ndarray(shape, dtype, memory, offset)
                for (shape, dtype), offset in zip(specs[name], offsets[name], strict=True)
            ]
            for name in specs
        }

    def __getitem__(self, name: str) -> list[np.ndarray]:
        return self._arrays[name]

    def close(self) -> None:
        """Releases the memory. It is freed with the last reference to one of its arrays."""
        self._arrays.clear()
        if self.file >= 0:
            os.close(self.file)
            self.file = -1


def _offsets(specs: Specs) -> tuple[dict[str, list[int]], int]:
    """Returns the byte offset of each array and the total size."""
    offsets: dict[str, list[int]] = {}
    offset = 0
    for name, arrays in specs.items():
        offsets[name] = []
        for shape, dtype in arrays:
            offsets[name].append(offset)
            size = int(np.prod(shape)) * np.dtype(dtype).itemsize
            offset += -(-size // ALIGNMENT) * ALIGNMENT
    return offsets, max(offset, 1)


def _new_file(size: int) -> int:
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("weft")
    else:
        with tempfile.TemporaryFile() as temporary:
            file = os.dup(temporary.fileno())
    os.ftruncate(file, size)
    return file
