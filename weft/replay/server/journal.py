"""A journal of the changes to tables since their last checkpoint, so that no acknowledged change is lost.

A record is its length, its checksum and a frame (see `wire`). The record is passed to the operating system before the
request is acknowledged, so it survives the death of the process. With `sync`, it is also on the disk by then, so it
survives a crash of the machine: every change waits for the disk, and changes that arrive together share one wait.

A process that dies while writing leaves an incomplete record at the end of the file. That change was not acknowledged.
Reading stops at a record with a wrong checksum, and can cut it off.

>>> import tempfile
>>> path = Path(tempfile.mkdtemp()) / "journal"
>>> journal = Journal(path)
>>> journal.wait_until_durable(journal.append({"method": "reset"}, {}))
>>> journal.close()
>>> with path.open("ab") as file:
...     _ = file.write(b"incomplete")
>>> [message.head for message in read_records(path, truncate=True)]
[{'method': 'reset'}]
"""

import os
import struct
import threading
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from weft.errors import WeftError
from weft.replay.server import wire
from weft.replay.server.frame_header import Limits

RECORD = struct.Struct("<QI")
"""A record's length and CRC-32, in front of its frame."""
LIMITS = Limits(header=1 << 26, frame=1 << 40, arrays=1 << 16)


class Journal:
    """A journal file that one thread at a time appends to."""

    def __init__(self, path: Path, *, sync: bool = False) -> None:
        self.path, self.sync = path, sync
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self.size = self.synced_size = os.fstat(self.file).st_size
        self.sync_lock = threading.Lock()
        self.failure = ""

    def append(self, head: Mapping[str, Any], arrays: wire.Arrays) -> int:
        """Adds a record; returns its end in the file, for `wait_until_durable`."""
        if self.failure:
            raise WeftError(
                f"the journal {self.path} cannot be written: {self.failure}. "
                "Make room on the disk and take a checkpoint"
            )
        buffers = wire.encode(head, arrays)
        checksum = 0
        for buffer in buffers:
            checksum = zlib.crc32(buffer, checksum)
        size = sum(map(len, buffers))
        try:
            self._write([RECORD.pack(size, checksum), *buffers])
        except OSError as error:
            # Reading stops at an incomplete record, so later records would be lost behind it.
            self.failure = str(error.strerror)
            os.ftruncate(self.file, self.size)
            raise WeftError(
                f"the journal {self.path} cannot be written: {self.failure}. This change may be lost"
            ) from error
        self.size += RECORD.size + size
        return self.size

    def wait_until_durable(self, end: int) -> None:
        """With `sync`, returns when all records up to this end are on the disk; else at once."""
        if self.sync and self.synced_size < end:
            with self.sync_lock:
                if self.synced_size < end:
                    size = self.size
                    os.fdatasync(self.file)
                    self.synced_size = size

    def close(self) -> None:
        with self.sync_lock:
            if self.file >= 0:
                if self.sync:
                    os.fdatasync(self.file)
                self.synced_size = self.size
                os.close(self.file)
                self.file = -1

    def _write(self, buffers: list[wire.Buffer]) -> None:
        views = [memoryview(buffer) for buffer in buffers]
        while views:
            wire.drop_sent(views, os.writev(self.file, views[: wire.MAX_BUFFERS]))


def read_records(path: Path, *, truncate: bool = False) -> Iterator[wire.Message]:
    """Yields the records up to the first incomplete or corrupt one; with `truncate`, cuts the file off there."""
    end = 0
    with path.open("rb") as file:
        while True:
            prefix = file.read(RECORD.size)
            if len(prefix) < RECORD.size:
                break
            size, checksum = RECORD.unpack(prefix)
            remaining = os.fstat(file.fileno()).st_size - file.tell()
            frame = file.read(size) if size <= remaining else b""
            if size != len(frame) or zlib.crc32(frame) != checksum:
                break
            yield wire.decode(frame, LIMITS)
            end = file.tell()
    if truncate and end < path.stat().st_size:
        os.truncate(path, end)
