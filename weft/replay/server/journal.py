"""A log of what was done to tables since their last checkpoint, so that nothing acknowledged is lost with the process.

A record is a frame (see `wire`) after its length and its checksum. It is handed to the operating system before the
request is answered, so it outlives the process, however that ends. With `sync` it is on the disk before the answer, so
it outlives the machine as well: that costs a wait for the disk on every change, shared by those that come together.

A process that dies while it writes leaves half a record at the end. It was not acknowledged; whoever reads the log
finds that its checksum is wrong, and it is cut off.

>>> import tempfile
>>> path = Path(tempfile.mkdtemp()) / "log"
>>> journal = Journal(path)
>>> journal.settle(journal.write({"method": "reset"}, {}))
>>> journal.close()
>>> with path.open("ab") as file:
...     _ = file.write(b"torn")
>>> [message.head for message in read(path, mend=True)]
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

RECORD = struct.Struct("<QI")
LIMITS = wire.Limits(header=1 << 26, frame=1 << 40, arrays=1 << 16)


class Journal:
    """A log that is being written, by one thread at a time."""

    def __init__(self, path: Path, *, sync: bool = False) -> None:
        self.path, self.sync = path, sync
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self.written = self.settled = os.fstat(self.file).st_size
        self.settling = threading.Lock()
        self.failed = ""

    def write(self, head: Mapping[str, Any], arrays: wire.Arrays) -> int:
        """Add a record; where it ends is what `settle` wants to know."""
        if self.failed:
            raise WeftError(f"the log {self.path} cannot be written: {self.failed}; make room and take a checkpoint")
        buffers = wire.encode(head, arrays)
        checksum = 0
        for buffer in buffers:
            checksum = zlib.crc32(buffer, checksum)
        size = sum(map(len, buffers))
        try:
            self._write([RECORD.pack(size, checksum), *buffers])
        except OSError as error:
            # What was written of it would hide all that follows.
            self.failed = str(error.strerror)
            os.ftruncate(self.file, self.written)
            raise WeftError(f"the log {self.path} cannot be written: {self.failed}; the call may be lost") from error
        self.written += RECORD.size + size
        return self.written

    def settle(self, end: int) -> None:
        """Come back when the record that ends here is as safe as was asked for."""
        if self.sync and self.settled < end:
            with self.settling:
                if self.settled < end:
                    written = self.written
                    os.fdatasync(self.file)
                    self.settled = written

    def close(self) -> None:
        with self.settling:
            if self.file >= 0:
                if self.sync:
                    os.fdatasync(self.file)
                self.settled = self.written
                os.close(self.file)
                self.file = -1

    def _write(self, buffers: list[wire.Buffer]) -> None:
        views = [memoryview(buffer) for buffer in buffers]
        while views:
            wire.advance(views, os.writev(self.file, views[: wire.PIECES]))


def read(path: Path, *, mend: bool = False) -> Iterator[wire.Message]:
    """The records of a log, up to one that is torn; with `mend`, the file is cut there."""
    end = 0
    with path.open("rb") as file:
        while True:
            start = file.read(RECORD.size)
            if len(start) < RECORD.size:
                break
            size, checksum = RECORD.unpack(start)
            left = os.fstat(file.fileno()).st_size - file.tell()
            frame = file.read(size) if size <= left else b""
            if size != len(frame) or zlib.crc32(frame) != checksum:
                break
            yield wire.decode(frame, LIMITS)
            end = file.tell()
    if mend and end < path.stat().st_size:
        os.truncate(path, end)
