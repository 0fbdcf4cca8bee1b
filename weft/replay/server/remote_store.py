"""A server's store, for a `Writer` in a client.

A writer appends steps and then makes items of them. Here, steps are buffered until there are items, and both are sent
in one request, which is executed completely or not at all. Every row has one writer, so the client can compute the
positions of its next steps; the server rejects steps that would get other positions.

    table = connect(address).table("sequences")
    writer = Writer([table], length=80, period=40)
"""

import threading
from typing import Any

import numpy as np

from weft.replay.nested import Structure, by_name
from weft.replay.server.protocol import COLUMN_PREFIX
from weft.replay.server.session import Session
from weft.replay.store import Store, count_earlier_equal

MAX_BUFFERED_STEPS = 1024
NO_ITEMS = {"start": np.empty(0, np.int64), "length": np.empty(0, np.int64)}


class RemoteStore:
    """Appends to a server's store, through one of its tables."""

    def __init__(self, session: Session, table: str, description: dict[str, Any]) -> None:
        self.session, self.table = session, table
        self.rows, self.steps_per_row = description["rows"], description["steps_per_row"]
        names = [name for name, _, _ in description["columns"]]
        leaves = [np.broadcast_to(np.zeros((), dtype), shape) for _, dtype, shape in description["columns"]]
        # A store with one step per row, used only to check steps.
        self._template = Store(by_name(names, leaves), self.rows, self.rows)
        self.lock = threading.RLock()
        self.counts: np.ndarray = session.call("counts", table).arrays["count"].copy()
        self.buffer: list[tuple[list[np.ndarray], np.ndarray, np.ndarray]] = []
        """Columns, rows and positions of steps that have not been sent."""

    @property
    def structure(self) -> Structure:
        return self._template.structure

    def check(self, steps: Any) -> tuple[list[np.ndarray], int]:
        """Returns the leaves of steps as arrays, and the number of steps; raises unless all match their columns."""
        return self._template.check(steps)

    def append_checked(self, arrays: list[np.ndarray], n: int, rows: Any = None) -> np.ndarray:
        """Buffers steps and returns their positions. They are sent with the next items, or when the buffer is full."""
        with self.lock:
            buffered = sum(len(steps_rows) for _, steps_rows, _ in self.buffer)
            if buffered + n > min(MAX_BUFFERED_STEPS, self.steps_per_row):
                self.flush()
            rows = np.zeros(n, np.int64) if rows is None else np.asarray(rows, np.int64)
            positions = (self.counts[rows] + count_earlier_equal(rows)) * self.rows + rows
            self.counts += np.bincount(rows, minlength=self.rows)
            self.buffer.append(([np.array(array) for array in arrays], rows, positions))
            return positions

    def flush(self, table: str | None = None, items: dict[str, np.ndarray] | None = None, timeout: Any = None) -> Any:
        """Sends the buffered steps, with a table's items over them; returns the keys of the items."""
        with self.lock:
            if not self.buffer:
                return np.empty(0, np.uint64)
            columns, rows, positions = zip(*self.buffer, strict=True)
            names = [COLUMN_PREFIX + name for name in self.structure.names]
            arrays = dict(zip(names, map(np.concatenate, zip(*columns, strict=True)), strict=True))
            arrays |= {"rows": np.concatenate(rows), "position": np.concatenate(positions)}
            args = {"timeout": timeout}
            reply = self.session.call("append", table or self.table, args, {**arrays, **(items or NO_ITEMS)})
            self.buffer.clear()
            return reply.arrays["key"]
