"""The store of a server's tables as a writer sees it.

A `Writer` appends steps and then makes items of them. Here the steps wait until there are items, and both go in one
request, which is carried out once, or not at all. A row belongs to one writer, so the positions of its next steps are
known beforehand; the server refuses steps that would come to others.

    table = connect(address).table("sequences")
    writer = Writer([table], length=80, period=40)
"""

import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.replay.nested import Structure, by_name
from weft.replay.server.reading import DATA
from weft.replay.store import Store, count_earlier_equal

if TYPE_CHECKING:
    from weft.replay.server.client import Client

WAITING = 1024
"""Steps that wait for items at most."""


class RemoteStore:
    """Appends to a store of a server, through one of its tables."""

    def __init__(self, client: "Client", table: str, described: dict[str, Any]) -> None:
        self.client, self.table = client, table
        self.rows, self.steps_per_row = described["rows"], described["steps_per_row"]
        names = [name for name, _, _ in described["columns"]]
        leaves = [np.broadcast_to(np.zeros((), dtype), shape) for _, dtype, shape in described["columns"]]
        # A store of one step for every row, for what it says of steps that do not fit.
        self.form = Store(by_name(names, leaves), self.rows, self.rows)
        self.lock = threading.RLock()
        self.counts: np.ndarray = client.call("counts", table).arrays["count"].copy()
        self.waiting: list[tuple[list[np.ndarray], np.ndarray, np.ndarray]] = []
        """Columns, rows and positions of steps that are not sent yet."""

    @property
    def structure(self) -> Structure:
        return self.form.structure

    def check(self, steps: Any) -> tuple[list[np.ndarray], int]:
        """The leaves of steps as arrays, and how many steps these are; refused unless all fit their columns."""
        return self.form.check(steps)

    def append_checked(self, arrays: list[np.ndarray], n: int, rows: Any = None) -> np.ndarray:
        """The positions that steps will have; they are sent with the next items, or when many wait."""
        with self.lock:
            if sum(len(waiting) for _, waiting, _ in self.waiting) + n > min(WAITING, self.steps_per_row):
                self.flush()
            rows = np.zeros(n, np.int64) if rows is None else np.asarray(rows, np.int64)
            positions = (self.counts[rows] + count_earlier_equal(rows)) * self.rows + rows
            self.counts += np.bincount(rows, minlength=self.rows)
            self.waiting.append(([np.array(array) for array in arrays], rows, positions))
            return positions

    def flush(self, table: str | None = None, items: dict[str, np.ndarray] | None = None, timeout: Any = None) -> Any:
        """Send the steps that wait, with items of a table that are made of them."""
        with self.lock:
            if not self.waiting:
                return np.empty(0, np.uint64)
            columns, rows, positions = zip(*self.waiting, strict=True)
            names = [DATA + name for name in self.structure.names]
            arrays = dict(zip(names, map(np.concatenate, zip(*columns, strict=True)), strict=True))
            arrays |= {"rows": np.concatenate(rows), "position": np.concatenate(positions)}
            none = np.empty(0, np.int64)
            items = items or {"start": none, "length": none}
            message = self.client.call("append", table or self.table, {"timeout": timeout}, {**arrays, **items})
            self.waiting.clear()
            return message.arrays["key"]
