"""Arrays in memory that several processes see.

The memory has no name: processes get it as an open file, and it is gone when the last of them is, however they end. It
is loaded by worker processes, like `block`.

>>> shared = Shared({"reward": [((3,), "<f8")], "obs": [((3, 2), "|u1"), ((3,), "<f4")]})
>>> shared["reward"][0][1] = 0.5
>>> Shared(shared.parts, shared.file)["reward"][0].tolist()
[0.0, 0.5, 0.0]
>>> shared.close()
"""

import mmap
import os
import tempfile
from collections.abc import Mapping
from typing import Any

import numpy as np

ALIGNMENT = 64

Parts = Mapping[str, list[tuple[tuple[int, ...], str]]]
"""By name, the shapes and types of some arrays."""


class Shared:
    """Named lists of arrays in one piece of memory: new, or that of an open file."""

    def __init__(self, parts: Parts, file: int | None = None) -> None:
        self.parts = parts
        spans, size = _spans(parts)
        self.file = _new_file(size) if file is None else file
        memory = mmap.mmap(self.file, size)
        self._arrays = {
            name: [np.ndarray(shape, dtype, memory, offset) for shape, dtype, offset in places]
            for name, places in spans.items()
        }

    def __getitem__(self, name: str) -> list[np.ndarray]:
        return self._arrays[name]

    def close(self) -> None:
        """Let go of the memory; it goes with the last array of it that somebody still has."""
        self._arrays.clear()
        if self.file >= 0:
            os.close(self.file)
            self.file = -1


def _spans(parts: Parts) -> tuple[dict[str, list[Any]], int]:
    """Where each array lies, and how much memory they all take."""
    spans: dict[str, list[Any]] = {}
    offset = 0
    for name, arrays in parts.items():
        spans[name] = []
        for shape, dtype in arrays:
            spans[name].append((shape, dtype, offset))
            size = int(np.prod(shape)) * np.dtype(dtype).itemsize
            offset += -(-size // ALIGNMENT) * ALIGNMENT
    return spans, max(offset, 1)


def _new_file(size: int) -> int:
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("weft")
    else:
        with tempfile.TemporaryFile() as temporary:
            file = os.dup(temporary.fileno())
    os.ftruncate(file, size)
    return file
