"""What makes a server outlive its process: checkpoints in a folder, and a log of what came after the last.

The folder has `checkpoint-N` and `log-N`, which has all that was done since. A checkpoint is taken while the server
serves: changes stop for as long as the tables are copied in memory and a new log is begun, and go on while the copy is
written. Only when it is whole are the older ones deleted, so a process may die at any moment.

What is acknowledged is in the log before (see `journal`): it survives the death of the process, and with `sync=True`
that of the machine. On this the last checkpoint is read, and the logs from it on are carried out again, one call after
the other. The log costs a checksum and a copy of what is inserted, and that changes are made one at a time. Only what
comes through the service is in it: what a program does to a table of its own directly is kept by the next checkpoint.
"""

import re
import shutil
import sys
import threading
from pathlib import Path

from weft.errors import WeftError
from weft.replay import checkpoint
from weft.replay.server.calls import Reply
from weft.replay.server.journal import Journal, read
from weft.replay.server.service import Service

NAME = re.compile(r"(checkpoint|log)-(\d{6,})")


class Keeper:
    """Keeps the tables of a service in a folder; what is there already is put into them first."""

    def __init__(self, folder: str | Path, service: Service, *, sync: bool = False) -> None:
        self.folder, self.service, self.sync = Path(folder), service, sync
        self.saving = threading.Lock()
        self.stopping = threading.Event()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.number = max(self._numbers("checkpoint"), default=0)
        if self.number:
            self._put_back()
        else:
            self.save()
        service.save = self.save

    def save(self) -> str:
        """Write a checkpoint of this moment; where it is."""
        with self.saving:
            with self.service.order:
                number = max((self.number, *self._numbers("log"))) + 1
                kept = [[client, id, reply.result, reply.arrays] for client, id, reply in self.service.answers.known()]
                state = checkpoint.capture(list(self.service.tables.values()), answers=kept)
                before, self.service.journal = self.service.journal, self._log(number)
                if before is not None:
                    before.close()
            path = self._path("checkpoint", number)
            checkpoint.write(path, state)
            self.number = number
            self._delete_older()
            return str(path)

    def save_every(self, seconds: float) -> None:
        """Write checkpoints from now on, in a thread of their own."""

        def run() -> None:
            while not self.stopping.wait(seconds):
                try:
                    self.save()
                except WeftError as error:  # the log goes on, and so may the disk
                    print(f"weft: {error}", file=sys.stderr)

        threading.Thread(target=run, daemon=True, name="weft-replay-checkpoints").start()

    def close(self) -> None:
        """Stop; the log has all that was acknowledged."""
        self.stopping.set()
        with self.saving, self.service.order:
            if self.service.journal is not None:
                self.service.journal.close()
            self.service.journal, self.service.save = None, None

    def _put_back(self) -> None:
        state = checkpoint.read(self._path("checkpoint", self.number))
        checkpoint.restore_tables(state, self.service.tables)
        for client, number, result, arrays in state["answers"]:
            self.service.answers.settle(client, number, Reply(result, arrays))
        logs = sorted(number for number in self._numbers("log") if number >= self.number)
        for number in logs:
            for message in read(self._path("log", number), mend=True):
                self.service.repeat(message)
        self.service.journal = self._log(max(logs, default=self.number))

    def _log(self, number: int) -> Journal:
        return Journal(self._path("log", number), sync=self.sync)

    def _path(self, kind: str, number: int) -> Path:
        return self.folder / f"{kind}-{number:06}"

    def _numbers(self, kind: str) -> list[int]:
        found = (NAME.fullmatch(path.name) for path in self.folder.iterdir())
        return [int(match[2]) for match in found if match and match[1] == kind]

    def _delete_older(self) -> None:
        for number in self._numbers("log"):
            if number < self.number:
                self._path("log", number).unlink()
        for number in self._numbers("checkpoint"):
            if number < self.number:
                shutil.rmtree(self._path("checkpoint", number), ignore_errors=True)
