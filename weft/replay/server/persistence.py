"""Saves a server's tables in a folder: checkpoints, and a journal of the changes since the last checkpoint.

The folder has `checkpoint-N`, and `log-N` with every change since then. Checkpoints are taken while the server runs:
changes are blocked while the tables are copied in memory and a new journal is started, and continue while the copy is
written. Older files are deleted only when the checkpoint is complete, so the process may die at any moment.

A change is in the journal before it is acknowledged (see `journal`). On start-up, the last checkpoint is read and all
journals since are executed again. The journal costs a checksum, a copy of the inserted data, and concurrency: changes
are executed one at a time. It contains only changes that go through the request handler; those that a program makes
directly to its own tables are saved with the next checkpoint.
"""

import re
import shutil
import sys
import threading
from pathlib import Path

from weft.errors import WeftError
from weft.replay import checkpoint
from weft.replay.server.journal import Journal, read_records
from weft.replay.server.protocol import Reply
from weft.replay.server.request_handler import RequestHandler

FILE_NAME = re.compile(r"(checkpoint|log)-(\d{6,})")


class Persistence:
    """Saves the tables of a request handler to a folder, after restoring them from it."""

    def __init__(self, folder: str | Path, handler: RequestHandler, *, sync: bool = False) -> None:
        self.folder, self.handler, self.sync = Path(folder), handler, sync
        self.save_lock = threading.Lock()
        self.stopping = threading.Event()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.number = max(self._numbers("checkpoint"), default=0)
        if self.number:
            self._restore()
        else:
            self.save()
        handler.save_checkpoint = self.save

    def save(self) -> str:
        """Writes a checkpoint of the current state; returns its path."""
        with self.save_lock:
            with self.handler.change_lock:
                number = max((self.number, *self._numbers("log"))) + 1
                replies = [
                    [client, id, reply.result, reply.arrays] for client, id, reply in self.handler.replies.snapshot()
                ]
                state = checkpoint.capture(list(self.handler.tables.values()), answers=replies)
                previous, self.handler.journal = self.handler.journal, self._open_journal(number)
                if previous is not None:
                    previous.close()
            path = self._path("checkpoint", number)
            checkpoint.write(path, state)
            self.number = number
            self._delete_older()
            return str(path)

    def start_saving(self, interval: float) -> None:
        """Starts a thread that writes a checkpoint every `interval` seconds."""

        def run() -> None:
            while not self.stopping.wait(interval):
                try:
                    self.save()
                except WeftError as error:  # The journal goes on, and the next checkpoint may succeed.
                    print(f"weft: {error}", file=sys.stderr)

        threading.Thread(target=run, daemon=True, name="weft-replay-checkpoints").start()

    def close(self) -> None:
        """Stops saving. The journal has every acknowledged change."""
        self.stopping.set()
        with self.save_lock, self.handler.change_lock:
            if self.handler.journal is not None:
                self.handler.journal.close()
            self.handler.journal, self.handler.save_checkpoint = None, None

    def _restore(self) -> None:
        state = checkpoint.read(self._path("checkpoint", self.number))
        checkpoint.restore_tables(state, self.handler.tables)
        for client, number, result, arrays in state["answers"]:
            self.handler.replies.finish(client, number, Reply(result, arrays))
        journals = sorted(number for number in self._numbers("log") if number >= self.number)
        for number in journals:
            for record in read_records(self._path("log", number), truncate=True):
                self.handler.redo(record)
        self.handler.journal = self._open_journal(max(journals, default=self.number))

    def _open_journal(self, number: int) -> Journal:
        return Journal(self._path("log", number), sync=self.sync)

    def _path(self, kind: str, number: int) -> Path:
        return self.folder / f"{kind}-{number:06}"

    def _numbers(self, kind: str) -> list[int]:
        matches = (FILE_NAME.fullmatch(path.name) for path in self.folder.iterdir())
        return [int(match[2]) for match in matches if match and match[1] == kind]

    def _delete_older(self) -> None:
        for number in self._numbers("log"):
            if number < self.number:
                self._path("log", number).unlink()
        for number in self._numbers("checkpoint"):
            if number < self.number:
                shutil.rmtree(self._path("checkpoint", number), ignore_errors=True)
