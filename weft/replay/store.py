"""Where the steps are: one preallocated array for every column, written in rings.

A row is one stream of steps, such as an environment; each row has a ring of `capacity // rows` steps, in which the
newest overwrites the oldest. Steps are known by their position, an int64 that is never used again:

    position = (number of the step in its row) * rows + row

so that the step after one is `rows` further, and the place of a step in its column is its position modulo the places.

>>> store = Store({"reward": np.float32(0)}, capacity=6, rows=2)
>>> first = store.append({"reward": [1, 10, 2]}, rows=[0, 1, 0])
>>> first.tolist(), store.read(first)["reward"].tolist()
([0, 1, 2], [1.0, 10.0, 2.0])
>>> store.append({"reward": [3, 4]}, rows=[0, 0]).tolist(), store.holds(first).tolist()
([4, 6], [False, True, True])
"""

import threading
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from weft.errors import WeftError
from weft.replay.nested import Column, Structure

Index = np.ndarray | slice


class Reader(Protocol):
    """Somebody who must know when steps are overwritten: a table."""

    def overwritten(self, places: np.ndarray) -> None: ...


class Store:
    """Steps in columns; several tables may have items over them, and share its lock."""

    def __init__(self, signature: Any, capacity: int, rows: int = 1) -> None:
        if rows < 1 or capacity < rows:
            raise WeftError(f"a store of {capacity} steps in {rows} rows: expected at least one step for every row")
        self.structure = Structure(signature)
        self.rows = rows
        self.steps_per_row = capacity // rows
        self.capacity = self.steps_per_row * rows
        # Memory that was never written to is not taken from the machine.
        self.columns = [np.zeros((self.capacity, *shape), dtype) for _, shape, dtype in self.structure.columns]
        self.counts = np.zeros(rows, np.int64)
        """Steps that every row has had."""
        self.placed = False
        """Whether a table says where each step goes; then there are no rings."""
        self.lock = threading.RLock()
        self.readers: list[Reader] = []

    @property
    def bytes(self) -> int:
        return sum(column.nbytes for column in self.columns)

    def append(self, steps: Any, rows: Any = None) -> np.ndarray:
        """Write steps, leaves [n, ...], each to its row, in order; all to row 0 if none are given. Their positions."""
        arrays, n = self.check(steps)
        return self.append_checked(arrays, n, None if rows is None else self.check_rows(rows, n))

    def append_checked(self, arrays: list[np.ndarray], n: int, rows: np.ndarray | None = None) -> np.ndarray:
        """As `append`, of what `check` and `check_rows` gave."""
        with self.lock:
            if self.placed:
                raise WeftError("this store is filled by its table's insert, and cannot be appended to as well")
            positions = self._positions(rows, n)
            places = positions % self.capacity
            if positions.size and positions.max() >= self.capacity:
                for reader in self.readers:
                    reader.overwritten(places[positions >= self.capacity])
            self.put(arrays, as_slice(places))
            return positions

    def claim(self) -> None:
        """From now on the table that owns the store says where steps go."""
        if not self.placed and self.counts.any():
            raise WeftError("this store is filled by append, so make items of its steps with insert_items")
        self.placed = True

    def put(self, arrays: list[np.ndarray], places: Index) -> None:
        """Write what `check` gave to these places."""
        for column, array in zip(self.columns, arrays, strict=True):
            column[places] = array

    def holds(self, positions: Any) -> np.ndarray:
        """Which positions have been written and not yet overwritten, bool[n]."""
        number, row = np.divmod(np.asarray(positions, np.int64), self.rows)
        count = self.counts[row]
        return (number >= 0) & (number < count) & (number >= count - self.steps_per_row)

    def read(self, positions: Any, columns: Sequence[str] | None = None) -> Any:
        """The steps at positions of any shape: nested as they came; with `columns`, a dictionary of those."""
        places = np.asarray(positions, np.int64) % self.capacity
        if columns is None:
            return self.structure.unflatten([column.take(places, axis=0, mode="clip") for column in self.columns])
        return {name: self.column(name).take(places, axis=0, mode="clip") for name in columns}

    def column(self, name: str) -> np.ndarray:
        """All places of a column."""
        if name not in self.structure.names:
            raise WeftError(f"there is no column {name!r}; the columns are {', '.join(self.structure.names)}")
        return self.columns[self.structure.names.index(name)]

    def check(self, steps: Any) -> tuple[list[np.ndarray], int]:
        """The leaves of steps as arrays, and how many steps these are; refused unless all fit their columns."""
        arrays = [leaf if type(leaf) is np.ndarray else np.asarray(leaf) for leaf in self.structure.flatten(steps)]
        n = len(arrays[0]) if arrays[0].ndim else -1
        for array, column in zip(arrays, self.structure.columns, strict=True):
            _refuse_unfit(array, column, n)
        return arrays, n

    def check_rows(self, rows: Any, n: int) -> np.ndarray:
        """The rows of n steps, int64[n]; refused unless the store has them."""
        rows = np.asarray(rows)
        if rows.shape != (n,) or rows.dtype.kind not in "iu":
            raise WeftError(f"rows are {rows.dtype}{list(rows.shape)}: expected an integer for each of the {n} steps")
        if n and not (rows.min() >= 0 and rows.max() < self.rows):
            raise WeftError(f"rows are from {rows.min()} to {rows.max()}: the store has {self.rows} rows, from 0")
        return rows.astype(np.int64, copy=False)

    def state(self) -> dict[str, Any]:
        """What must be saved: arrays, and values that JSON can hold. Columns are by their names, not copied."""
        with self.lock:
            written = self.capacity if self.placed else min(self.capacity, int(self.counts.max()) * self.rows)
            columns = {name: column[:written] for name, column in zip(self.structure.names, self.columns, strict=True)}
            return {"columns": columns, "counts": self.counts.copy(), "placed": self.placed}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `state` of a store of the same columns, capacity and rows gave."""
        with self.lock:
            for name, array in state["columns"].items():
                self.column(name)[: len(array)] = array
            self.counts[:] = state["counts"]
            self.placed = bool(state["placed"])

    def _positions(self, rows: np.ndarray | None, n: int) -> np.ndarray:
        """The next position in the row of each step; counted."""
        if rows is None:
            most, numbers = n, np.arange(self.counts[0], self.counts[0] + n)
            rows, added = np.zeros(1, np.int64), np.array([n])
        else:
            added = np.bincount(rows, minlength=self.rows)
            most = int(added.max(initial=0))
            numbers = self.counts[rows] if most <= 1 else self.counts[rows] + count_earlier_equal(rows)
        if most > self.steps_per_row:
            raise WeftError(
                f"append of {most} steps to a row that holds {self.steps_per_row}: append less at once, or make the "
                "store larger"
            )
        self.counts[: len(added)] += added
        return numbers * self.rows + rows


def as_slice(places: np.ndarray) -> Index:
    """Places that follow each other as a slice, which is several times as quick to index with."""
    n = len(places)
    if n:
        first, last = int(places[0]), int(places[-1])
        # To compare the bytes is the quickest way for few.
        if last - first == n - 1 and (n == 1 or places.tobytes() == np.arange(first, last + 1).tobytes()):
            return slice(first, last + 1)
    return places


def count_earlier_equal(rows: np.ndarray) -> np.ndarray:
    """How many equal ones stand before each."""
    order = np.argsort(rows, kind="stable")
    sorted_rows = rows[order]
    ranks = np.empty_like(order)
    ranks[order] = np.arange(len(rows)) - sorted_rows.searchsorted(sorted_rows)
    return ranks


def _refuse_unfit(array: np.ndarray, column: Column, n: int) -> None:
    name, shape, dtype = column
    if n < 0 or array.shape != (n, *shape):
        sizes = ", ".join(["n", *map(str, shape)])
        raise WeftError(f"column {name!r} is {list(array.shape)}: expected [{sizes}], n steps at once")
    if array.dtype != dtype and not np.can_cast(array.dtype, dtype, "same_kind"):
        raise WeftError(
            f"column {name!r} is {array.dtype}: expected {dtype}, or what becomes that without loss of kind"
        )
