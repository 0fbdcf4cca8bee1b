"""Selectors: who is sampled, and who goes when a table is full.

A selector knows the slots of a table and their priorities, and chooses among them. It needs three methods; a
selector of one's own is a subclass with these:

>>> class Loudest(Selector):
...     "Always the slot with the highest priority."
...     def __init__(self):
...         self.priority = {}
...     def insert(self, slots, priorities):
...         self.priority.update(zip(slots.tolist(), priorities.tolist()))
...     def remove(self, slots):
...         for slot in slots.tolist():
...             del self.priority[slot]
...     def choose(self, n, rng):
...         return np.full(n, max(self.priority, key=self.priority.__getitem__)), np.ones(n)
>>> loudest = Loudest()
>>> loudest.insert(np.array([0, 1, 2]), np.array([0.5, 2.0, 1.0]))
>>> loudest.take(2, np.random.default_rng(0))[0].tolist()
[1, 2]

A selector has a state, so each table has selectors of its own.
"""

import heapq
from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from weft.errors import WeftError
from weft.replay.store import span

Slots = np.ndarray
Chosen = tuple[np.ndarray, np.ndarray]
"""Slots, int64[n], and the probability with which each was chosen, float64[n]."""

NARROW = np.int32
"""Of slots and places that are kept: half the memory."""
SCAN = 4096
"""How many that have gone are looked over, or kept, at once."""


class Selector(ABC):
    """Chooses slots; `insert`, `remove` and `choose` are what a selector must have."""

    capacity = 0
    """Slots of the table that it belongs to."""
    by_slot = False
    """Whether to insert a slot that is there already is as good as to remove it first."""

    @abstractmethod
    def insert(self, slots: Slots, priorities: np.ndarray) -> None:
        """New slots, or slots whose priority has changed."""

    @abstractmethod
    def remove(self, slots: Slots) -> None:
        """Slots that are there, each once."""

    @abstractmethod
    def choose(self, n: int, rng: np.random.Generator) -> Chosen:
        """n slots, independently of each other; there is at least one."""

    def take(self, n: int, rng: np.random.Generator) -> Chosen:
        """n different slots, each chosen when those before it were removed; all of them are removed."""
        chosen: list[Chosen] = []
        while n:
            # To draw again whatever came twice is the same as to draw from what is left.
            slots, probabilities = self.choose(n, rng)
            first = np.sort(np.unique(slots, return_index=True)[1])
            chosen.append((slots[first], probabilities[first]))
            self.remove(slots[first])
            n -= len(first)
        return joined(chosen)

    def reserve(self, capacity: int) -> None:
        """Make room for the slots of a table, once."""
        if self.capacity:
            raise WeftError(f"this {type(self).__name__} belongs to a table already: give each table one of its own")
        self.capacity = capacity

    def state(self) -> dict[str, Any]:
        """What must be saved to go on exactly: arrays, and values that JSON can hold."""
        return {name: value.copy() if isinstance(value, np.ndarray) else value for name, value in vars(self).items()}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `state` gave."""
        for name, value in state.items():
            setattr(self, name, value.copy() if isinstance(value, np.ndarray) else value)


class Uniform(Selector):
    """Every slot is as likely as any other."""

    by_slot = True

    def reserve(self, capacity: int) -> None:
        super().reserve(capacity)
        self.slots = np.zeros(capacity, NARROW)
        self.place = np.full(capacity, -1, NARROW)
        self.size = 0

    def insert(self, slots: Slots, priorities: np.ndarray) -> None:
        new = _new(slots, self.place)
        if not len(new):
            return
        end = self.size + len(new)
        self.slots[self.size : end] = new
        self.place[span(new)] = np.arange(self.size, end)
        self.size = end

    def remove(self, slots: Slots) -> None:
        """The last ones move into the gaps."""
        left = self.size - len(slots)
        gaps = self.place[slots]
        self.place[slots] = -1
        last = self.slots[left : self.size]
        movers = last[self.place[last] >= 0]
        gaps = gaps[gaps < left]
        self.slots[gaps] = movers
        self.place[movers] = gaps
        self.size = left

    def choose(self, n: int, rng: np.random.Generator) -> Chosen:
        return self.slots.take(rng.integers(0, self.size, n)).astype(np.int64), np.full(n, 1 / self.size)

    def take(self, n: int, rng: np.random.Generator) -> Chosen:
        probabilities = 1 / np.arange(self.size, self.size - n, -1)
        slots = self.slots[rng.choice(self.size, n, replace=False)].astype(np.int64)
        self.remove(slots)
        return slots, probabilities


class _Ordered(Selector):
    """Slots in the order they came: those between `head` and `tail`, with -1 where one has gone."""

    step: int
    """1 from the oldest on, -1 from the newest back."""

    def reserve(self, capacity: int) -> None:
        super().reserve(capacity)
        self.order = np.zeros(2 * capacity, NARROW)
        self.place = np.full(capacity, -1, NARROW)
        self.head = self.tail = self.size = 0

    def insert(self, slots: Slots, priorities: np.ndarray) -> None:
        new = _new(slots, self.place)
        if self.tail + len(new) > len(self.order):
            self._close_gaps()
        end = self.tail + len(new)
        self.order[self.tail : end] = new
        self.place[span(new)] = np.arange(self.tail, end)
        self.tail = end
        self.size += len(new)

    def remove(self, slots: Slots) -> None:
        self.order[self.place[slots]] = -1
        self.place[slots] = -1
        self.size -= len(slots)
        self._trim()
        if self.tail - self.head > 2 * self.size + SCAN:
            self._close_gaps()

    def choose(self, n: int, rng: np.random.Generator) -> Chosen:
        return np.full(n, self._first(1)[0][0]), np.ones(n)

    def take(self, n: int, rng: np.random.Generator) -> Chosen:
        slots, width = self._first(n)
        self.place[span(slots)] = -1
        self.size -= n
        self._pass_over(width)
        return slots, np.ones(n)

    def _first(self, n: int) -> tuple[Slots, int]:
        """The n that are next, and how many entries these are with those that have gone."""
        width = n
        while True:
            part = self.order[self.head : self.tail][:: self.step][:width]
            if len(part) == n and part.min(initial=0) >= 0:
                return part.astype(np.int64), n
            found = np.flatnonzero(part >= 0)
            if len(found) >= n or width >= self.tail - self.head:
                return part[found[:n]].astype(np.int64), int(found[n - 1]) + 1 if n else 0
            width *= 4

    def _pass_over(self, count: int) -> None:
        if self.step > 0:
            self.head += count
        else:
            self.tail -= count

    def _trim(self) -> None:
        """Move the end that is chosen from past those that have gone."""
        while self.head < self.tail:
            gone = self.order[self.head : self.tail][:: self.step][:SCAN] < 0
            count = len(gone) if gone.all() else int(gone.argmin())
            self._pass_over(count)
            if count < SCAN:
                break

    def _close_gaps(self) -> None:
        left = self.order[self.head : self.tail]
        left = left[left >= 0]
        self.head, self.tail = 0, len(left)
        self.order[: self.tail] = left
        self.place[left] = np.arange(self.tail)


class Fifo(_Ordered):
    """The oldest slot."""

    step = 1


class Lifo(_Ordered):
    """The newest slot."""

    step = -1


class _Heap(Selector):
    """The slot with the first priority; of several, the oldest."""

    sign: int

    def __init__(self) -> None:
        self.entries: dict[int, tuple[float, int, int]] = {}
        """The entry of every slot: priority, number of its insert, slot. Others in the heap count for nothing."""
        self.heap: list[tuple[float, int, int]] = []
        self.count = 0

    def insert(self, slots: Slots, priorities: np.ndarray) -> None:
        for slot, priority in zip(slots.tolist(), (self.sign * priorities).tolist(), strict=True):
            before = self.entries.get(slot)
            number = self.count if before is None else before[1]
            self.count += 1
            entry = self.entries[slot] = (priority, number, slot)
            heapq.heappush(self.heap, entry)
        if len(self.heap) > 2 * len(self.entries) + SCAN:
            self.heap = sorted(self.entries.values())

    def remove(self, slots: Slots) -> None:
        for slot in slots.tolist():
            del self.entries[slot]

    def choose(self, n: int, rng: np.random.Generator) -> Chosen:
        while self.entries.get(self.heap[0][2]) is not self.heap[0]:
            heapq.heappop(self.heap)
        return np.full(n, self.heap[0][2]), np.ones(n)

    def take(self, n: int, rng: np.random.Generator) -> Chosen:
        slots = np.empty(n, np.int64)
        for index in range(n):
            slots[index : index + 1] = self.choose(1, rng)[0]
            del self.entries[heapq.heappop(self.heap)[2]]
        return slots, np.ones(n)

    def state(self) -> dict[str, Any]:
        return {"entries": np.array(sorted(self.entries.values()), np.float64).reshape(-1, 3), "count": self.count}

    def restore(self, state: dict[str, Any]) -> None:
        self.heap = [(priority, int(number), int(slot)) for priority, number, slot in state["entries"].tolist()]
        self.entries = {entry[2]: entry for entry in self.heap}
        self.count = state["count"]


class MinHeap(_Heap):
    """The slot with the lowest priority; of several, the oldest."""

    sign = 1


class MaxHeap(_Heap):
    """The slot with the highest priority; of several, the oldest."""

    sign = -1


def _new(slots: Slots, place: np.ndarray) -> Slots:
    """Those of the slots that have no place yet."""
    places = place.take(slots)
    return slots if places.max(initial=-1) < 0 else slots[places < 0]


def joined(chosen: list[Chosen]) -> Chosen:
    """One after the other."""
    if not chosen:
        return np.empty(0, np.int64), np.empty(0)
    return np.concatenate([slots for slots, _ in chosen]), np.concatenate([some for _, some in chosen])
