"""Writers append the steps of many environments to a store, and insert items of several steps into tables.

An item starts at every `period`-th step of an episode, from its first, and has `length` steps, or fewer if the episode
ends earlier. n-step transitions are `length=n, period=1`; sequences that overlap by half are `length=80, period=40`. An
episode ends with a step whose column `terminated` or `truncated` is true, or for which `ended` is given.

>>> store = Store({"reward": np.float32(0), "terminated": np.bool_(False)}, capacity=100, rows=2)
>>> table = Table(store=store, capacity=100, length=3)
>>> writer = Writer(table, length=3, period=2)
>>> for t in range(4):
...     writer.append({"reward": [t, 10 * t], "terminated": [t == 3, False]})
>>> items = table.items()
>>> list(zip(store.read(items.start)["reward"].tolist(), items.length.tolist()))
[(0.0, 3), (0.0, 3), (2.0, 2)]

A writer keeps one count per row, the priorities of the last `length - 1` steps, and at most `chunk` steps that are not
in the store yet. If a limiter blocks for longer than `timeout`, the steps are in the store and their items are lost.
"""

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from weft.errors import WeftError
from weft.replay.items import check_priorities
from weft.replay.store import Store
from weft.replay.table import Table

END_COLUMNS = ("terminated", "truncated")
SHAPE_AND_DTYPE = attrgetter("shape", "dtype")


class Writer:
    """Appends steps to the store that its tables share, and inserts items over them into each table."""

    def __init__(
        self,
        tables: Table | Sequence[Table],
        *,
        rows: int | None = None,
        first_row: int = 0,
        length: int = 1,
        period: int = 1,
        burn_in: int = 0,
        cross: bool = False,
        whole: bool = False,
        mix: float = 1.0,
        chunk: int = 1,
    ) -> None:
        """A writer for `rows` rows of the store, from `first_row` on.

        Items need at least one step after the first `burn_in`. With `cross`, items cross the ends of episodes. With
        `whole`, items shorter than `length` are left out. If steps have priorities, an item's priority is `mix` times
        the maximum plus `1 - mix` times the mean over its steps after the burn-in. Steps of all rows are buffered until
        there are `chunk` of them or `flush` is called, and then written together, which is faster for few rows.
        """
        self.tables = [tables] if isinstance(tables, Table) else list(tables)
        self.store: Store = self.tables[0].store
        self.rows = self.store.rows - first_row if rows is None else rows
        self.first_row, self.length, self.period, self.burn_in = first_row, length, period, burn_in
        self.cross, self.whole, self.mix, self.chunk = cross, whole, mix, chunk
        self._check_arguments()
        self._end_columns = [
            i for i, name in enumerate(self.store.structure.names) if name.split("/")[-1] in END_COLUMNS
        ]
        self._all_rows = np.arange(self.rows)
        self._steps = np.zeros(self.rows, np.int64)
        """The number of steps in the current episode of each row."""
        self._recent = np.zeros((length - 1, self.rows))
        """The priorities of the last steps of each row, the newest last."""
        columns = self.store.structure.columns
        self._expected = tuple(((self.rows, *column.shape), column.dtype) for column in columns)
        """The shape and dtype of each leaf of a step of all rows."""
        self._record = np.dtype([(f"{i}", dtype, shape) for i, (shape, dtype) in enumerate(self._expected)])
        self._max_buffered = min(chunk, self.store.steps_per_row - length + 1)
        self._buffer = _Buffer()

    def append(
        self, step: Any, rows: Any = None, ended: Any = None, priority: Any = None, timeout: float | None = None
    ) -> None:
        """Append one step of each row, or of `rows` (no duplicates): leaves [B, ...], `ended` and `priority` [B]."""
        if rows is not None:
            self.flush(timeout)
            arrays, n = self.store.check(step)
            chosen = self._check_rows(rows, n)
            ended, priority = _add_time(ended), _check_priority(_add_time(priority), (1, n))
            self._write(arrays, chosen, self._ended(ended, arrays, (1, n)), priority, timeout)
            return
        packed = self._packed(step)
        if ended is not None:
            ended = _check_shape("ended", _add_time(ended), (1, self.rows))
        priority = _check_priority(_add_time(priority), (1, self.rows))
        if self._buffer.steps and not self._buffer.matches(ended, priority):
            self.flush(timeout)
        self._buffer.add(packed, ended, priority)
        if len(self._buffer.steps) >= self._max_buffered:
            self.flush(timeout)

    def append_many(
        self, steps: Any, rows: Any = None, ended: Any = None, priority: Any = None, timeout: float | None = None
    ) -> None:
        """Append T steps of each row, or of `rows`: leaves [T, B, ...], `ended` and `priority` [T, B]."""
        leaves = [np.asarray(leaf) for leaf in self.store.structure.flatten(steps)]
        if any(leaf.ndim < 2 or leaf.shape[:2] != leaves[0].shape[:2] for leaf in leaves):
            raise WeftError(f"columns are {[list(leaf.shape) for leaf in leaves]}: expected [T, B, ...] for all")
        count, width = leaves[0].shape[:2]
        chosen = self._check_rows(rows, width)
        flat = [leaf.reshape(-1, *leaf.shape[2:]) for leaf in leaves]
        arrays, _ = self.store.check(self.store.structure.unflatten(flat))
        ended, priority = self._ended(ended, arrays, (count, width)), _check_priority(priority, (count, width))
        self.flush(timeout)
        # In parts: the store must not overwrite steps before they are in an item.
        part_length = self.store.steps_per_row - self.length + 1
        for t in range(0, count, part_length):
            part = [array[t * width : (t + part_length) * width] for array in arrays]
            part_priority = priority if priority is None else priority[t : t + part_length]
            self._write(part, chosen, ended[t : t + part_length], part_priority, timeout)

    def flush(self, timeout: float | None = None) -> None:
        """Write the buffered steps."""
        buffer, self._buffer = self._buffer, _Buffer()
        if not buffer.steps:
            return
        columns = self.store.structure.columns
        steps = np.frombuffer(b"".join(buffer.steps), self._record)
        arrays = [steps[f"{i}"].reshape(-1, *column.shape) for i, column in enumerate(columns)]
        ended = self._ended(_concatenate(buffer.ended), arrays, (len(steps), self.rows))
        self._write(arrays, self._all_rows, ended, _concatenate(buffer.priority), timeout)

    def _packed(self, step: Any) -> bytes:
        """The bytes of a step of all rows, leaf after leaf."""
        leaves = self.store.structure.flatten(step)
        try:
            if tuple(map(SHAPE_AND_DTYPE, leaves)) == self._expected:
                return b"".join(leaves)
        except (AttributeError, TypeError, ValueError, BufferError):
            pass  # not arrays, or not contiguous
        arrays, n = self.store.check(step)
        self._check_rows(None, n)
        return b"".join(np.asarray(a, dtype).tobytes() for a, (_, dtype) in zip(arrays, self._expected, strict=True))

    def _write(
        self,
        arrays: list[np.ndarray],
        rows: np.ndarray,
        ended: np.ndarray,
        priority: np.ndarray | None,
        timeout: float | None,
    ) -> None:
        """Write steps in order of time, leaves [T * B, ...], and the items that end with one of them."""
        count = len(ended)
        in_store = np.tile(rows + self.first_row, count) if count > 1 else rows + self.first_row
        with self.store.lock:
            positions = self.store.append_checked(arrays, ended.size, in_store).reshape(ended.shape)
            items = self._items(positions, self._count(rows, ended), ended)
            priorities = self._priorities(items, rows, priority)
            if len(items.start):
                for table in self.tables:
                    table.insert_items(items.start, items.length, priorities, timeout)

    def _ended(self, ended: Any, arrays: list[np.ndarray], shape: tuple[int, int]) -> np.ndarray:
        """Whether each step ends an episode, [T, B]: the argument if it is given, else from the columns."""
        if ended is not None:
            return _check_shape("ended", ended, shape).astype(bool, copy=False)
        flags = [arrays[index] for index in self._end_columns]
        return np.any(flags, axis=0).reshape(shape) if flags else np.zeros(shape, bool)

    def _count(self, rows: np.ndarray, ended: np.ndarray) -> np.ndarray:
        """The number of each step in its episode, from 1: int64[T, B]; updates the rows' counts."""
        count = len(ended)
        if self.cross or count == 1:
            number = self._steps[rows] + np.arange(1, count + 1)[:, None]
        else:
            t = np.arange(count)[:, None]
            began = np.where(np.roll(ended, 1, axis=0), t, -self._steps[rows])
            began[0] = -self._steps[rows]
            number = t + 1 - np.maximum.accumulate(began, axis=0)
        self._steps[rows] = number[-1] if self.cross else np.where(ended[-1], 0, number[-1])
        return number

    def _items(self, positions: np.ndarray, number: np.ndarray, ended: np.ndarray) -> "_NewItems":
        """The items that end with one of these steps, ordered by that step."""
        past = number - self.length
        time, column = np.nonzero((past >= 0) & (past % self.period == 0))
        start = positions[time, column] - (self.length - 1) * self.store.rows
        whole = _NewItems(time, column, start, np.full(len(time), self.length))
        if self.cross or self.whole or not ended.any():
            return whole
        parts = [whole, *self._short_items(positions, number, np.nonzero(ended))]
        items = _NewItems(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))
        order = np.lexsort((-items.length, items.column, items.time))
        return _NewItems(*(array[order] for array in items))

    def _short_items(
        self, positions: np.ndarray, number: np.ndarray, last: tuple[np.ndarray, ...]
    ) -> list["_NewItems"]:
        """The items that are shorter than `length`, given the indices of the last steps of episodes in [T, B]."""
        parts = []
        steps = number[last]
        first = np.maximum(0, (steps - self.length) // self.period + 1) * self.period
        for start in range(0, self.length, self.period):
            length = steps - first - start
            keep = length > self.burn_in
            time, column = last[0][keep], last[1][keep]
            length = length[keep]
            parts.append(_NewItems(time, column, positions[time, column] - (length - 1) * self.store.rows, length))
        return parts

    def _priorities(self, items: "_NewItems", rows: np.ndarray, priority: np.ndarray | None) -> np.ndarray | None:
        """The items' priorities from their steps', or None. Earlier steps without a priority count as 0."""
        if priority is None:
            self._recent[:, rows] = 0
            return None
        known = np.concatenate([self._recent[:, rows], np.asarray(priority, np.float64)])
        self._recent[:, rows] = known[len(known) - len(self._recent) :]
        step = np.arange(self.length)
        start = items.time + self.length - items.length
        each = known.take((start[:, None] + step) * len(rows) + items.column[:, None], mode="clip")
        counts = (step >= self.burn_in) & (step < items.length[:, None])
        highest = np.where(counts, each, 0).max(axis=1, initial=0)
        mean = np.where(counts, each, 0).sum(axis=1) / np.maximum(1, counts.sum(axis=1))
        return self.mix * highest + (1 - self.mix) * mean

    def _check_rows(self, rows: Any, n: int) -> np.ndarray:
        chosen = self._all_rows if rows is None else np.asarray(rows, np.int64).reshape(-1)
        if len(chosen) != n:
            raise WeftError(
                f"{n} steps for {len(chosen)} rows: expected one step per row; give rows= for a part of the rows"
            )
        if rows is not None and n and (chosen.min() < 0 or chosen.max() >= self.rows or np.bincount(chosen).max() > 1):
            raise WeftError(f"rows are {chosen.tolist()}: expected different ones, from 0 to {self.rows - 1}")
        return chosen

    def _check_arguments(self) -> None:
        if any(table.store is not self.store for table in self.tables):
            raise WeftError("the tables of a writer have different stores: create them with store= the same one")
        if self.rows < 1 or self.first_row < 0 or self.first_row + self.rows > self.store.rows:
            raise WeftError(
                f"rows are {self.first_row}:{self.first_row + self.rows}: the store has {self.store.rows} rows"
            )
        longest = min(self.store.steps_per_row, *(table.length for table in self.tables))
        if not (
            self.period >= 1 and 0 <= self.burn_in < self.length <= longest and 0 <= self.mix <= 1 and self.chunk >= 1
        ):
            names = ("length", "period", "burn_in", "mix", "chunk")
            arguments = ", ".join(f"{name} {getattr(self, name)}" for name in names)
            raise WeftError(
                f"{arguments}: expected burn_in < length <= {longest} "
                "(the limit of the tables and of the store's rows), period >= 1, mix from 0 to 1, chunk >= 1"
            )


class _Buffer:
    """Steps that are not written yet, with `ended` and `priority` if these were given."""

    def __init__(self) -> None:
        self.steps: list[bytes] = []
        self.ended: list[np.ndarray] = []
        self.priority: list[np.ndarray] = []

    def matches(self, ended: np.ndarray | None, priority: np.ndarray | None) -> bool:
        """Whether the next step gives `ended` and `priority` like the buffered steps do."""
        return (ended is not None) == bool(self.ended) and (priority is not None) == bool(self.priority)

    def add(self, step: bytes, ended: np.ndarray | None, priority: np.ndarray | None) -> None:
        self.steps.append(step)
        if ended is not None:
            self.ended.append(ended)
        if priority is not None:
            self.priority.append(priority)


class _NewItems(NamedTuple):
    """Items to insert: arrays [n]."""

    time: np.ndarray
    """The index of the item's last step in time, in the steps written together."""
    column: np.ndarray
    """The index of the item's row in the rows written together."""
    start: np.ndarray
    length: np.ndarray


def _add_time(values: Any) -> np.ndarray | None:
    """Values [B] of one step as [1, B]."""
    return None if values is None else np.asarray(values)[None]


def _concatenate(parts: list[np.ndarray]) -> np.ndarray | None:
    return np.concatenate(parts) if parts else None


def _check_priority(values: Any, shape: tuple[int, int]) -> np.ndarray | None:
    """The priorities of steps as float64[T, B], or None."""
    if values is None:
        return None
    priority = _check_shape("priority", values, shape)
    return check_priorities(priority.reshape(-1), priority.size).reshape(shape)


def _check_shape(name: str, values: Any, shape: tuple[int, int]) -> np.ndarray:
    array = np.asarray(values)
    if array.shape != shape:
        raise WeftError(f"{name} is of shape {list(array.shape)[-2:]}: expected one value per step, {list(shape)}")
    return array
