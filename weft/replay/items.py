"""The items of a table, as arrays indexed by slot.

An item is a sequence of steps in a store: its first position, its length, its priority and how often it was sampled. It
occupies a slot, which is reused after the item is removed, and has a key, which is never reused: the slot in the low 32
bits and the slot's generation above them. The generation increases when an item enters or leaves the slot, and is odd
while the slot is occupied. Finding the slots of keys, and which keys are stale, is arithmetic on whole arrays.

>>> items = ItemArrays(capacity=3)
>>> slots = items.free_slots(2)
>>> keys = items.add(slots, start=np.array([4, 6]), length=1, priority=np.ones(2))
>>> items.remove(slots[:1])
>>> items.find(keys)[0].tolist(), items.size
([1], 1)
"""

from typing import Any, NamedTuple

import numpy as np

from weft.errors import WeftError
from weft.replay.store import Index, as_slice

GENERATION = np.uint64(1 << 32)
SLOT = np.uint64((1 << 32) - 1)
ONE = np.int32(1)
"""An int32, as `times_sampled`: `np.add.at` is thirty times as slow with another type."""


ITEM = np.dtype([("key", "u8"), ("start", "i8"), ("priority", "f8"), ("times_sampled", "i4"), ("length", "i4")])
FIELDS = ITEM.names or ()


class Items(NamedTuple):
    """Items of a table: arrays [n]."""

    key: np.ndarray
    """uint64"""
    start: np.ndarray
    """The position of the first step in the store."""
    length: np.ndarray
    """In steps."""
    priority: np.ndarray
    times_sampled: np.ndarray


class Info(NamedTuple):
    """Metadata of sampled items: arrays [n], and the number of items in the table."""

    key: np.ndarray
    probability: np.ndarray
    """The probability of the item at the time of its draw."""
    priority: np.ndarray
    times_sampled: np.ndarray
    """Including this sample."""
    length: np.ndarray
    table_size: int


class Sample(NamedTuple):
    """Sampled items: their steps, leaves [n, ...] or [n, length, ...], and their metadata."""

    data: Any
    info: Info


class ItemArrays:
    """The items of a table by slot; a free slot has an even generation."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        # One record per item: reading a random slot touches memory once.
        self.records = np.zeros(capacity, ITEM)
        self.key, self.start, self.priority, self.times_sampled, self.length = (self.records[name] for name in FIELDS)
        self.key[:] = np.arange(capacity)
        # A stack of the free slots; the next one is on top, at index `capacity - size - 1`.
        self.free = np.arange(capacity - 1, -1, -1, dtype=np.int32)
        self.size = 0
        self.draws = 0
        """How often the present items were sampled, in total."""

    def free_slots(self, n: int) -> np.ndarray:
        """The slots that the next n items will occupy."""
        left = self.capacity - self.size
        return self.free[left - n : left][::-1].astype(np.int64)

    def add(self, slots: np.ndarray, *, start: Any, length: Any, priority: Any) -> np.ndarray:
        """Put items into slots from `free_slots`; return their keys."""
        index = as_slice(slots)
        self.key[index] += GENERATION
        self.start[index] = start
        self.length[index] = length
        self.priority[index] = priority
        self.times_sampled[index] = 0
        self.size += len(slots)
        return self.key[index].copy()

    def remove(self, slots: np.ndarray) -> None:
        """Free these slots, each given once."""
        index = as_slice(slots)
        self.key[index] += GENERATION
        left = self.capacity - self.size
        self.free[left : left + len(slots)] = slots[::-1]
        self.size -= len(slots)
        self.draws -= int(self.times_sampled[index].sum())

    def count_draws(self, slots: np.ndarray) -> None:
        """Count one sample for each entry of `slots`, which may repeat."""
        np.add.at(self.times_sampled, slots, ONE)
        self.draws += len(slots)

    def find(self, keys: Any) -> tuple[np.ndarray, np.ndarray]:
        """The slots of the keys that are not stale, and which keys these are, bool[n]."""
        keys = np.asarray(keys, np.uint64).reshape(-1)
        slots = (keys & SLOT).astype(np.int64)
        current = self.key[np.minimum(slots, self.capacity - 1)]
        found = (current == keys) & ((keys & GENERATION) != 0)
        return (slots, found) if found.all() else (slots[found], found)

    def occupied(self) -> np.ndarray:
        """The occupied slots, in order."""
        return np.flatnonzero(self.key & GENERATION)

    def read(self, slots: np.ndarray) -> Items:
        """The items in these slots."""
        records = self.records.take(slots, mode="clip")
        return Items(*(records[name] for name in Items._fields))

    def state(self) -> dict[str, Any]:
        """Everything that a checkpoint must hold: arrays, and JSON values."""
        arrays = {name: getattr(self, name).copy() for name in (*FIELDS, "free")}
        return {**arrays, "size": self.size, "draws": self.draws}

    def restore(self, state: dict[str, Any]) -> None:
        """Resume from a result of `state`."""
        for name in (*FIELDS, "free"):
            getattr(self, name)[:] = state[name]
        self.size, self.draws = int(state["size"]), int(state["draws"])


class StartIndex:
    """Finds the items that start at given indices of a store, to remove them before the store overwrites these."""

    def __init__(self, capacity: int) -> None:
        """An empty index for a store of `capacity` steps."""
        self.slot = np.full(capacity, -1, np.int64)
        """The slot of one item that starts at each index; -1 if none does."""
        self.more: dict[int, list[int]] = {}
        """The slots of further items that start at the same index: rarely any."""

    def add(self, slots: np.ndarray, starts: np.ndarray) -> None:
        """Add items by their slots and the indices of their first steps."""
        index: Index = as_slice(starts)
        unused = self.slot[index] < 0
        self.slot[starts[unused]] = slots[unused]
        further = self.slot[index] != slots
        if further.any():
            for start, slot in zip(starts[further].tolist(), slots[further].tolist(), strict=True):
                self.more.setdefault(start, []).append(slot)

    def remove(self, slots: np.ndarray, starts: np.ndarray) -> None:
        """Remove items by their slots and the indices of their first steps."""
        first = self.slot[starts] == slots
        self.slot[starts[first]] = -1
        if not first.all():
            for start, slot in zip(starts[~first].tolist(), slots[~first].tolist(), strict=True):
                self.more[start].remove(slot)
                if not self.more[start]:
                    del self.more[start]

    def find(self, indices: np.ndarray) -> np.ndarray:
        """The slots of all items that start at these indices."""
        slots = self.slot[indices]
        slots = slots[slots >= 0]
        if not self.more:
            return slots
        further = [slot for index in indices.tolist() for slot in self.more.get(index, ())]
        return np.concatenate([slots, np.array(further, np.int64)])


def repeated(value: float, n: int) -> np.ndarray:
    """An array [n] of one number, in the memory of one (stride 0)."""
    return np.ndarray(n, np.float64, np.array([value]), strides=(0,))


def check_priorities(priorities: Any, n: int) -> np.ndarray:
    """One priority for each of n items, float64[n]; raises unless all are finite and at least 0."""
    array = np.asarray(priorities, np.float64)
    if array.shape != (n,):
        if array.ndim:
            raise WeftError(f"priorities are of shape {list(array.shape)}: expected one number, or [{n}]")
        array = np.full(n, array)
    # The comparisons are also false for NaN.
    if n and not (array.min() >= 0 and array.max() < np.inf):
        raise WeftError("priorities are negative, infinite or NaN: expected finite numbers of at least 0")
    return array
