"""Writers: steps of many environments go in as they come, and items of several steps come out of them.

An item starts at every `period`-th step of an episode, counted from its first, and has `length` steps; where the
episode ends before, it is shorter. So n-step transitions are `length=n, period=1`, and sequences that overlap by half
are `length=80, period=40`. An episode ends with a step whose `terminated` or `truncated` column says so, or by `ended`.

>>> store = Store({"reward": np.float32(0), "terminated": np.bool_(False)}, capacity=100, rows=2)
>>> table = Table(store=store, capacity=100, length=3)
>>> writer = Writer(table, length=3, period=2)
>>> for t in range(4):
...     writer.append({"reward": [t, 10 * t], "terminated": [t == 3, False]})
>>> items = table.items()
>>> list(zip(store.read(items.start)["reward"].tolist(), items.length.tolist()))
[(0.0, 3), (0.0, 3), (2.0, 2)]

What a writer remembers is one count for every row, the priorities of the last `length` steps, and at most `chunk` steps
that are not in the store yet. If a limiter makes it wait for too long, the steps are in the store and their items are
not made.
"""

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from weft.errors import WeftError
from weft.replay.items import check_priorities
from weft.replay.store import Store
from weft.replay.table import Table

ENDS = ("terminated", "truncated")
FORM = attrgetter("shape", "dtype")


class Writer:
    """Appends steps to the store that its tables share, and makes items of them in each table."""

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
        """Writes to `rows` rows of the store, from `first_row` on.

        Items that have no step beyond the first `burn_in` are not made. With `cross`, episodes do not end items; with
        `whole`, items that would be shorter than `length` are not made. Where steps have priorities, an item has `mix`
        times the highest of its steps' after the burn-in, and for the rest their mean. Steps of all rows are kept until
        `chunk` of them are there or `flush` is called, and then written at once, which is quicker for few rows.
        """
        self.tables = [tables] if isinstance(tables, Table) else list(tables)
        self.store: Store = self.tables[0].store
        self.rows = self.store.rows - first_row if rows is None else rows
        self.first_row, self.length, self.period, self.burn_in = first_row, length, period, burn_in
        self.cross, self.whole, self.mix, self.chunk = cross, whole, mix, chunk
        self._refuse_unfit()
        self._ends = [i for i, name in enumerate(self.store.structure.names) if name.split("/")[-1] in ENDS]
        self._all_rows = np.arange(self.rows)
        self._steps = np.zeros(self.rows, np.int64)
        """Steps of the current episode of each row."""
        self._recent = np.zeros((length - 1, self.rows))
        """The priorities of the last steps of each row, the newest last."""
        columns = self.store.structure.columns
        self._form = tuple(((self.rows, *column.shape), column.dtype) for column in columns)
        """What every leaf of a step of all rows should be."""
        self._record = np.dtype([(f"{i}", dtype, shape) for i, (shape, dtype) in enumerate(self._form)])
        self._most = min(chunk, self.store.steps_per_row - length + 1)
        self._kept = _Kept()

    def append(
        self, step: Any, rows: Any = None, ended: Any = None, priority: Any = None, timeout: float | None = None
    ) -> None:
        """One step of every row, leaves [B, ...], or of the given rows, each once; `ended` and `priority` are [B]."""
        if rows is not None:
            self.flush(timeout)
            arrays, n = self.store.check(step)
            chosen = self._check_rows(rows, n)
            ended, priority = _one(ended), _priority(_one(priority), (1, n))
            self._write(arrays, chosen, self._ended(ended, arrays, (1, n)), priority, timeout)
            return
        packed = self._packed(step)
        if ended is not None:
            ended = _of_shape("ended", _one(ended), (1, self.rows))
        priority = _priority(_one(priority), (1, self.rows))
        if self._kept.steps and not self._kept.alike(ended, priority):
            self.flush(timeout)
        self._kept.add(packed, ended, priority)
        if len(self._kept.steps) >= self._most:
            self.flush(timeout)

    def append_many(
        self, steps: Any, rows: Any = None, ended: Any = None, priority: Any = None, timeout: float | None = None
    ) -> None:
        """T steps of every row, leaves [T, B, ...], or of the given rows; `ended` and `priority` are [T, B]."""
        leaves = [np.asarray(leaf) for leaf in self.store.structure.flatten(steps)]
        if any(leaf.ndim < 2 or leaf.shape[:2] != leaves[0].shape[:2] for leaf in leaves):
            raise WeftError(f"columns are {[list(leaf.shape) for leaf in leaves]}: expected [T, B, ...] of all")
        count, width = leaves[0].shape[:2]
        chosen = self._check_rows(rows, width)
        flat = [leaf.reshape(-1, *leaf.shape[2:]) for leaf in leaves]
        arrays, _ = self.store.check(self.store.structure.unflatten(flat))
        ended, priority = self._ended(ended, arrays, (count, width)), _priority(priority, (count, width))
        self.flush(timeout)
        # Not so many at once that the first would be written over before they are in an item.
        most = self.store.steps_per_row - self.length + 1
        for t in range(0, count, most):
            part = [array[t * width : (t + most) * width] for array in arrays]
            then = priority if priority is None else priority[t : t + most]
            self._write(part, chosen, ended[t : t + most], then, timeout)

    def flush(self, timeout: float | None = None) -> None:
        """Write the steps that are kept."""
        kept, self._kept = self._kept, _Kept()
        if not kept.steps:
            return
        columns = self.store.structure.columns
        steps = np.frombuffer(b"".join(kept.steps), self._record)
        arrays = [steps[f"{i}"].reshape(-1, *column.shape) for i, column in enumerate(columns)]
        ended = self._ended(_joined(kept.ended), arrays, (len(steps), self.rows))
        self._write(arrays, self._all_rows, ended, _joined(kept.priority), timeout)

    def _packed(self, step: Any) -> bytes:
        """The bytes of a step of all rows, one leaf after the other."""
        leaves = self.store.structure.flatten(step)
        try:
            if tuple(map(FORM, leaves)) == self._form:
                return b"".join(leaves)
        except (AttributeError, TypeError, ValueError, BufferError):
            pass  # no arrays, or not in one piece
        arrays, n = self.store.check(step)
        self._check_rows(None, n)
        return b"".join(np.asarray(a, dtype).tobytes() for a, (_, dtype) in zip(arrays, self._form, strict=True))

    def _write(
        self,
        arrays: list[np.ndarray],
        rows: np.ndarray,
        ended: np.ndarray,
        priority: np.ndarray | None,
        timeout: float | None,
    ) -> None:
        """Steps in order of time, leaves [T * B, ...], and the items that end with one of them."""
        count = len(ended)
        in_store = np.tile(rows + self.first_row, count) if count > 1 else rows + self.first_row
        with self.store.lock:
            positions = self.store.append_checked(arrays, ended.size, in_store).reshape(ended.shape)
            items = self._items(positions, self._count(rows, ended), ended)
            priorities = self._priorities(items, rows, priority)
            if len(items.start):
                for table in self.tables:
                    table.insert_items(items.start, items.length, priorities, timeout)

    def _ended(self, given: Any, arrays: list[np.ndarray], shape: tuple[int, int]) -> np.ndarray:
        """Which steps end an episode, [T, B]: as it is given, or as their columns say."""
        if given is not None:
            return _of_shape("ended", given, shape).astype(bool, copy=False)
        flags = [arrays[index] for index in self._ends]
        return np.any(flags, axis=0).reshape(shape) if flags else np.zeros(shape, bool)

    def _count(self, rows: np.ndarray, ended: np.ndarray) -> np.ndarray:
        """The number of each step in its episode, from 1: int64[T, B]."""
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

    def _items(self, positions: np.ndarray, number: np.ndarray, ended: np.ndarray) -> "_Made":
        """The items that end with one of these steps, in order of that step."""
        past = number - self.length
        time, column = np.nonzero((past >= 0) & (past % self.period == 0))
        start = positions[time, column] - (self.length - 1) * self.store.rows
        whole = _Made(time, column, start, np.full(len(time), self.length))
        if self.cross or self.whole or not ended.any():
            return whole
        made = [whole, *self._short(positions, number, np.nonzero(ended))]
        joined = _Made(*(np.concatenate(arrays) for arrays in zip(*made, strict=True)))
        order = np.lexsort((-joined.length, joined.column, joined.time))
        return _Made(*(array[order] for array in joined))

    def _short(self, positions: np.ndarray, number: np.ndarray, last: tuple[np.ndarray, ...]) -> list["_Made"]:
        """The items that an episode's end makes shorter, by the places of the episodes' last steps."""
        made = []
        steps = number[last]
        first = np.maximum(0, (steps - self.length) // self.period + 1) * self.period
        for start in range(0, self.length, self.period):
            length = steps - first - start
            there = length > self.burn_in
            time, column = last[0][there], last[1][there]
            length = length[there]
            made.append(_Made(time, column, positions[time, column] - (length - 1) * self.store.rows, length))
        return made

    def _priorities(self, items: "_Made", rows: np.ndarray, priority: np.ndarray | None) -> np.ndarray | None:
        """Of items, by those of their steps; None if steps have none. Steps without one count as 0 beside others."""
        if priority is None:
            self._recent[:, rows] = 0
            return None
        known = np.concatenate([self._recent[:, rows], np.asarray(priority, np.float64)])
        self._recent[:, rows] = known[len(known) - len(self._recent) :]
        place = np.arange(self.length)
        start = items.time + self.length - items.length
        each = known.take((start[:, None] + place) * len(rows) + items.column[:, None], mode="clip")
        counts = (place >= self.burn_in) & (place < items.length[:, None])
        highest = np.where(counts, each, 0).max(axis=1, initial=0)
        mean = np.where(counts, each, 0).sum(axis=1) / np.maximum(1, counts.sum(axis=1))
        return self.mix * highest + (1 - self.mix) * mean

    def _check_rows(self, rows: Any, n: int) -> np.ndarray:
        chosen = self._all_rows if rows is None else np.asarray(rows, np.int64).reshape(-1)
        if len(chosen) != n:
            raise WeftError(f"{n} steps for {len(chosen)} rows: expected one of each row, or say which with rows=")
        if rows is not None and n and (chosen.min() < 0 or chosen.max() >= self.rows or np.bincount(chosen).max() > 1):
            raise WeftError(f"rows {chosen.tolist()}: expected different ones, from 0 to {self.rows - 1}")
        return chosen

    def _refuse_unfit(self) -> None:
        if any(table.store is not self.store for table in self.tables):
            raise WeftError("the tables of a writer have different stores: make them with store= one that they share")
        if self.rows < 1 or self.first_row < 0 or self.first_row + self.rows > self.store.rows:
            raise WeftError(f"rows {self.first_row} to {self.first_row + self.rows}: the store has {self.store.rows}")
        longest = min(self.store.steps_per_row, *(table.length for table in self.tables))
        if not (
            self.period >= 1 and 0 <= self.burn_in < self.length <= longest and 0 <= self.mix <= 1 and self.chunk >= 1
        ):
            names = ("length", "period", "burn_in", "mix", "chunk")
            given = ", ".join(f"{name} {getattr(self, name)}" for name in names)
            raise WeftError(
                f"{given}: expected burn_in < length <= {longest} "
                "(as the tables and the rows of the store have it), period >= 1, mix from 0 to 1, chunk >= 1"
            )


class _Kept:
    """Steps that are not written yet; whether they end an episode and what their priorities are, if that is said."""

    def __init__(self) -> None:
        self.steps: list[bytes] = []
        self.ended: list[np.ndarray] = []
        self.priority: list[np.ndarray] = []

    def alike(self, ended: np.ndarray | None, priority: np.ndarray | None) -> bool:
        """Whether as much is said of the next step."""
        return (ended is not None) == bool(self.ended) and (priority is not None) == bool(self.priority)

    def add(self, step: bytes, ended: np.ndarray | None, priority: np.ndarray | None) -> None:
        self.steps.append(step)
        if ended is not None:
            self.ended.append(ended)
        if priority is not None:
            self.priority.append(priority)


class _Made(NamedTuple):
    """Items by their last steps: arrays [n]."""

    time: np.ndarray
    """When, of the steps that are written at once."""
    column: np.ndarray
    """Which of the rows that are written to."""
    start: np.ndarray
    length: np.ndarray


def _one(given: Any) -> np.ndarray | None:
    """What is said of one step, as of several."""
    return None if given is None else np.asarray(given)[None]


def _joined(parts: list[np.ndarray]) -> np.ndarray | None:
    return np.concatenate(parts) if parts else None


def _priority(given: Any, shape: tuple[int, int]) -> np.ndarray | None:
    """The priorities of steps, [T, B], if there are any."""
    if given is None:
        return None
    priority = _of_shape("priority", given, shape)
    return check_priorities(priority.reshape(-1), priority.size).reshape(shape)


def _of_shape(what: str, given: Any, shape: tuple[int, int]) -> np.ndarray:
    array = np.asarray(given)
    if array.shape != shape:
        raise WeftError(f"{what} is of shape {list(array.shape)[-2:]}: expected one for every step, {list(shape)}")
    return array
