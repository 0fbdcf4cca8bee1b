"""The storage of steps: one preallocated array per column, written as ring buffers.

A row is one stream of steps, such as an environment. Each row has a ring buffer of `capacity // rows` steps, in which
the newest step overwrites the oldest. A step's position is an int64 that is never reused:

    position = (number of the step in its row) * rows + row

The next step of the row is at `position + rows`; the step's index in its columns is `position % capacity`.

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


class OverwriteListener(Protocol):
    """An object that is told before steps are overwritten: a table."""

    def on_overwrite(self, indices: np.ndarray) -> None: ...


class Store:
    """Steps in columns. Several tables may have items over one store; they share its lock."""

    def __init__(self, signature: Any, capacity: int, rows: int = 1) -> None:
        if rows < 1 or capacity < rows:
            raise WeftError(f"a store of {capacity} steps in {rows} rows: expected at least one step for every row")
        self.structure = Structure(signature)
        self.rows = rows
        self.steps_per_row = capacity // rows
        self.capacity = self.steps_per_row * rows
        # The operating system allocates the memory of `zeros` when it is first written.
        self.columns = [np.zeros((self.capacity, *shape), dtype) for _, shape, dtype in self.structure.columns]
        self.counts = np.zeros(rows, np.int64)
        """Number of steps written to each row so far."""
        self.slot_addressed = False
        """Whether the owning table writes steps at the slots of its items; then there are no ring buffers."""
        self.lock = threading.RLock()
        self.listeners: list[OverwriteListener] = []

    @property
    def bytes(self) -> int:
        return sum(column.nbytes for column in self.columns)

    def append(self, steps: Any, rows: Any = None) -> np.ndarray:
        """Write steps, leaves [n, ...], in order, each to its row (by default row 0); return their positions."""
        arrays, n = self.check(steps)
        return self.append_checked(arrays, n, None if rows is None else self.check_rows(rows, n))

    def append_checked(self, arrays: list[np.ndarray], n: int, rows: np.ndarray | None = None) -> np.ndarray:
        """As `append`, for results of `check` and `check_rows`."""
        with self.lock:
            if self.slot_addressed:
                raise WeftError("this store is filled by its table's insert, so steps cannot be appended to it")
            positions = self._positions(rows, n)
            indices = positions % self.capacity
            if positions.size and positions.max() >= self.capacity:
                for listener in self.listeners:
                    listener.on_overwrite(indices[positions >= self.capacity])
            self.write(arrays, as_slice(indices))
            return positions

    def use_slot_addressing(self) -> None:
        """Let the table that owns the store choose the index of each step from now on."""
        if not self.slot_addressed and self.counts.any():
            raise WeftError("this store is filled by append: create items over its steps with insert_items")
        self.slot_addressed = True

    def write(self, arrays: list[np.ndarray], indices: Index) -> None:
        """Write steps, as returned by `check`, at these indices of the columns."""
        for column, array in zip(self.columns, arrays, strict=True):
            column[indices] = array

    def holds(self, positions: Any) -> np.ndarray:
        """Whether each position holds its step: written and not yet overwritten, bool[n]."""
        number, row = np.divmod(np.asarray(positions, np.int64), self.rows)
        count = self.counts[row]
        return (number >= 0) & (number < count) & (number >= count - self.steps_per_row)

    def read(self, positions: Any, columns: Sequence[str] | None = None) -> Any:
        """The steps at positions of any shape, in the form of the signature; with `columns`, a dictionary of these."""
        indices = np.asarray(positions, np.int64) % self.capacity
        if columns is None:
            return self.structure.unflatten([column.take(indices, axis=0, mode="clip") for column in self.columns])
        return {name: self.column(name).take(indices, axis=0, mode="clip") for name in columns}

    def column(self, name: str) -> np.ndarray:
        """The whole array of a column."""
        if name not in self.structure.names:
            raise WeftError(f"there is no column {name!r}; the columns are {', '.join(self.structure.names)}")
        return self.columns[self.structure.names.index(name)]

    def check(self, steps: Any) -> tuple[list[np.ndarray], int]:
        """The leaves of steps as arrays, and the number of steps; raises unless shapes and dtypes fit the columns."""
        arrays = [leaf if type(leaf) is np.ndarray else np.asarray(leaf) for leaf in self.structure.flatten(steps)]
        n = len(arrays[0]) if arrays[0].ndim else -1
        for array, column in zip(arrays, self.structure.columns, strict=True):
            _check_column(array, column, n)
        return arrays, n

    def check_rows(self, rows: Any, n: int) -> np.ndarray:
        """The rows of n steps, int64[n]; raises unless the store has them."""
        rows = np.asarray(rows)
        if rows.shape != (n,) or rows.dtype.kind not in "iu":
            raise WeftError(f"rows are {rows.dtype}{list(rows.shape)}: expected an integer for each of the {n} steps")
        if n and not (rows.min() >= 0 and rows.max() < self.rows):
            raise WeftError(f"rows are from {rows.min()} to {rows.max()}: expected 0 to {self.rows - 1}")
        return rows.astype(np.int64, copy=False)

    def state(self) -> dict[str, Any]:
        """Everything that a checkpoint must hold: arrays, and JSON values. Columns are views, not copies."""
        with self.lock:
            written = self.capacity if self.slot_addressed else min(self.capacity, int(self.counts.max()) * self.rows)
            columns = {name: column[:written] for name, column in zip(self.structure.names, self.columns, strict=True)}
            return {"columns": columns, "counts": self.counts.copy(), "placed": self.slot_addressed}

    def restore(self, state: dict[str, Any]) -> None:
        """Resume from the `state` of a store with the same columns, capacity and rows."""
        with self.lock:
            for name, array in state["columns"].items():
                self.column(name)[: len(array)] = array
            self.counts[:] = state["counts"]
            self.slot_addressed = bool(state["placed"])

    def _positions(self, rows: np.ndarray | None, n: int) -> np.ndarray:
        """The positions of n new steps; advances the counts of their rows."""
        if rows is None:
            longest, numbers = n, np.arange(self.counts[0], self.counts[0] + n)
            rows, added = np.zeros(1, np.int64), np.array([n])
        else:
            added = np.bincount(rows, minlength=self.rows)
            longest = int(added.max(initial=0))
            numbers = self.counts[rows] if longest <= 1 else self.counts[rows] + count_earlier_equal(rows)
        if longest > self.steps_per_row:
            raise WeftError(
                f"append of {longest} steps to a row that holds {self.steps_per_row}: append less at once, or make the "
                "store larger"
            )
        self.counts[: len(added)] += added
        return numbers * self.rows + rows


def as_slice(indices: np.ndarray) -> Index:
    """Consecutive indices as a slice, which indexes several times as fast; other indices unchanged."""
    n = len(indices)
    if n:
        first, last = int(indices[0]), int(indices[-1])
        # For few indices, comparing bytes is fastest.
        if last - first == n - 1 and (n == 1 or indices.tobytes() == np.arange(first, last + 1).tobytes()):
            return slice(first, last + 1)
    return indices


def count_earlier_equal(rows: np.ndarray) -> np.ndarray:
    """For each entry, the number of equal entries before it.

    >>> count_earlier_equal(np.array([5, 5, 3, 5])).tolist()
    [0, 1, 0, 2]
    """
    order = np.argsort(rows, kind="stable")
    sorted_rows = rows[order]
    counts = np.empty_like(order)
    counts[order] = np.arange(len(rows)) - sorted_rows.searchsorted(sorted_rows)
    return counts


def _check_column(array: np.ndarray, column: Column, n: int) -> None:
    name, shape, dtype = column
    if n < 0 or array.shape != (n, *shape):
        sizes = ", ".join(["n", *map(str, shape)])
        raise WeftError(f"column {name!r} is {list(array.shape)}: expected [{sizes}], n steps at once")
    if array.dtype != dtype and not np.can_cast(array.dtype, dtype, "same_kind"):
        raise WeftError(
            f"column {name!r} is {array.dtype}: expected {dtype}, or a dtype that casts to it within its kind"
        )
