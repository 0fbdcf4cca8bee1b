"""The items of a table, in arrays by slot.

An item is a run of steps of a store: where it starts, how long it is, its priority, and how often it was sampled. It
has a slot, a place in these arrays that is used again after it has gone, and a key, which is not: the slot in the low
32 bits, and above it how often the slot has changed hands, odd while an item is in it. So to find the slots of keys,
and to see which keys are stale, is arithmetic on whole arrays.

>>> items = ItemArrays(capacity=3)
>>> slots = items.free_slots(2)
>>> keys = items.enter(slots, start=np.array([4, 6]), length=1, priority=np.ones(2))
>>> items.leave(slots[:1])
>>> items.find(keys)[0].tolist(), items.size
([1], 1)
"""

from typing import Any, NamedTuple

import numpy as np

from weft.errors import WeftError
from weft.replay.store import Index, as_slice

HANDS = np.uint64(1 << 32)
SLOT = np.uint64((1 << 32) - 1)
ONE = np.int32(1)
"""Of the type that it is added to: to add any other in place is thirty times as slow."""


ITEM = np.dtype([("key", "u8"), ("start", "i8"), ("priority", "f8"), ("times_sampled", "i4"), ("length", "i4")])
FIELDS = ITEM.names or ()


class Items(NamedTuple):
    """Items of a table, as arrays [n]."""

    key: np.ndarray
    """uint64"""
    start: np.ndarray
    """The position of the first step in the store."""
    length: np.ndarray
    """In steps."""
    priority: np.ndarray
    times_sampled: np.ndarray


class Info(NamedTuple):
    """About sampled items: arrays [n], and the size of the table they came from."""

    key: np.ndarray
    probability: np.ndarray
    """Of being drawn, when it was drawn."""
    priority: np.ndarray
    times_sampled: np.ndarray
    """With this time."""
    length: np.ndarray
    table_size: int


class Sample(NamedTuple):
    """Sampled items: their steps, leaves [n, ...] or [n, length, ...], and what is known of them."""

    data: Any
    info: Info


class ItemArrays:
    """All items of a table; a slot without one has an even key."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        # All that is known of an item is in one place: to read it of random slots costs one look into memory for each.
        self.records = np.zeros(capacity, ITEM)
        self.key, self.start, self.priority, self.times_sampled, self.length = (self.records[name] for name in FIELDS)
        self.key[:] = np.arange(capacity)
        # The next free slot is the last here.
        self.free = np.arange(capacity - 1, -1, -1, dtype=np.int32)
        self.size = 0
        self.draws = 0
        """How often the items that are here were sampled, in all."""

    def free_slots(self, n: int) -> np.ndarray:
        """The slots that n new items will have."""
        left = self.capacity - self.size
        return self.free[left - n : left][::-1].astype(np.int64)

    def enter(self, slots: np.ndarray, *, start: Any, length: Any, priority: Any) -> np.ndarray:
        """Put items into the slots that `free_slots` gave; their keys."""
        index = as_slice(slots)
        self.key[index] += HANDS
        self.start[index] = start
        self.length[index] = length
        self.priority[index] = priority
        self.times_sampled[index] = 0
        self.size += len(slots)
        return self.key[index].copy()

    def leave(self, slots: np.ndarray) -> None:
        """The items of these slots, each once, have gone."""
        index = as_slice(slots)
        self.key[index] += HANDS
        left = self.capacity - self.size
        self.free[left : left + len(slots)] = slots[::-1]
        self.size -= len(slots)
        self.draws -= int(self.times_sampled[index].sum())

    def count_draws(self, slots: np.ndarray) -> None:
        """These slots, some perhaps more than once, are sampled."""
        np.add.at(self.times_sampled, slots, ONE)
        self.draws += len(slots)

    def find(self, keys: Any) -> tuple[np.ndarray, np.ndarray]:
        """The slots of the keys that are not stale, and which of the keys these are."""
        keys = np.asarray(keys, np.uint64).reshape(-1)
        slots = (keys & SLOT).astype(np.int64)
        there = self.key[np.minimum(slots, self.capacity - 1)]
        found = (there == keys) & ((keys & HANDS) != 0)
        return (slots, found) if found.all() else (slots[found], found)

    def occupied(self) -> np.ndarray:
        """All slots with an item."""
        return np.flatnonzero(self.key & HANDS)

    def at(self, slots: np.ndarray) -> Items:
        records = self.records.take(slots, mode="clip")
        return Items(*(records[name] for name in Items._fields))

    def state(self) -> dict[str, Any]:
        """What must be saved: arrays, and values that JSON can hold."""
        arrays = {name: getattr(self, name).copy() for name in (*FIELDS, "free")}
        return {**arrays, "size": self.size, "draws": self.draws}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `state` gave."""
        for name in (*FIELDS, "free"):
            getattr(self, name)[:] = state[name]
        self.size, self.draws = int(state["size"]), int(state["draws"])


class StartIndex:
    """Which items start at which place of a store, so that they go when it is written over."""

    def __init__(self, places: int) -> None:
        self.slot = np.full(places, -1, np.int64)
        self.more: dict[int, list[int]] = {}
        """The slots of further items that start at the same place: seldom any."""

    def add(self, slots: np.ndarray, places: np.ndarray) -> None:
        index: Index = as_slice(places)
        free = self.slot[index] < 0
        self.slot[places[free]] = slots[free]
        further = self.slot[index] != slots
        if further.any():
            for place, slot in zip(places[further].tolist(), slots[further].tolist(), strict=True):
                self.more.setdefault(place, []).append(slot)

    def remove(self, slots: np.ndarray, places: np.ndarray) -> None:
        first = self.slot[places] == slots
        self.slot[places[first]] = -1
        if not first.all():
            for place, slot in zip(places[~first].tolist(), slots[~first].tolist(), strict=True):
                self.more[place].remove(slot)
                if not self.more[place]:
                    del self.more[place]

    def at(self, places: np.ndarray) -> np.ndarray:
        """The slots of all items that start at these places."""
        slots = self.slot[places]
        slots = slots[slots >= 0]
        if not self.more:
            return slots
        further = [slot for place in places.tolist() for slot in self.more.get(place, ())]
        return np.concatenate([slots, np.array(further, np.int64)])


def repeated(value: float, n: int) -> np.ndarray:
    """The same number n times, in the memory of one."""
    return np.ndarray(n, np.float64, np.array([value]), strides=(0,))


def check_priorities(given: Any, n: int) -> np.ndarray:
    """One priority for each of n items, float64[n]; refused unless all are finite and none is negative."""
    priorities = np.asarray(given, np.float64)
    if priorities.shape != (n,):
        if priorities.ndim:
            raise WeftError(f"priorities are {list(priorities.shape)}: expected one number, or one for each of {n}")
        priorities = np.full(n, priorities)
    # False for what is not a number too.
    if n and not (priorities.min() >= 0 and priorities.max() < np.inf):
        raise WeftError("priorities are negative, infinite or not a number: expected finite ones, at least 0")
    return priorities
