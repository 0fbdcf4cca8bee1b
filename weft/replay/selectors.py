"""The selectors of weft, and the registry of their names.

>>> selector = parse_selector("prioritised:0.5")
>>> type(selector).__name__, selector.options()
('Prioritised', {'exponent': 0.5})
"""

import heapq
from typing import Any

import numpy as np

from weft.errors import WeftError
from weft.replay.registry import from_text
from weft.replay.selector import Chosen, Selector, Slots
from weft.replay.store import as_slice
from weft.replay.sumtree import SumTree

INDEX = np.int32
"""The type of stored slots and positions: int32 takes half the memory of int64."""
SCAN = 4096
"""How many removed entries are scanned at once, or kept before the order is compacted."""


class Uniform(Selector):
    """All slots have the same probability."""

    uses_priorities = False
    insert_replaces = True

    def allocate(self, capacity: int) -> None:
        super().allocate(capacity)
        self.slots = np.zeros(capacity, INDEX)
        self.place = np.full(capacity, -1, INDEX)
        self.size = 0

    def insert(self, slots: Slots, priorities: np.ndarray) -> None:
        new = _absent(slots, self.place)
        if not len(new):
            return
        end = self.size + len(new)
        self.slots[self.size : end] = new
        self.place[as_slice(new)] = np.arange(self.size, end)
        self.size = end

    def remove(self, slots: Slots) -> None:
        """Fill the gaps with the last slots."""
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

    def pop(self, n: int, rng: np.random.Generator) -> Chosen:
        probabilities = 1 / np.arange(self.size, self.size - n, -1)
        slots = self.slots[rng.choice(self.size, n, replace=False)].astype(np.int64)
        self.remove(slots)
        return slots, probabilities

    def total_weight(self) -> float:
        return float(self.size)


class Prioritised(Selector):
    """A slot's probability is proportional to its priority raised to `exponent` (Schaul et al. 2016).

    If all priorities are zero, all slots have the same probability.

    >>> sampler = Prioritised(exponent=1.0)
    >>> sampler.allocate(4)
    >>> sampler.insert(np.array([0, 1, 3]), np.array([0.0, 1.0, 3.0]))
    >>> slots, probabilities = sampler.choose(1000, np.random.default_rng(0))
    >>> dict(zip(slots.tolist(), probabilities.tolist())) == {1: 0.25, 3: 0.75}
    True
    """

    insert_replaces = True

    def __init__(self, exponent: float = 0.6) -> None:
        if not 0 <= exponent < np.inf:
            raise WeftError(f"the priority exponent is {exponent}: expected a finite number of at least 0")
        self.exponent = exponent

    def allocate(self, capacity: int) -> None:
        super().allocate(capacity)
        self.tree = SumTree(capacity)
        self.present = np.zeros(capacity, bool)

    def insert(self, slots: Slots, priorities: np.ndarray) -> None:
        self.present[as_slice(slots)] = True
        constant = priorities.strides == (0,)  # one number for all slots, from `weft.replay.items.repeated`
        self.tree.set(slots, (priorities[:1] if constant else priorities) ** self.exponent)

    def remove(self, slots: Slots) -> None:
        self.present[slots] = False
        self.tree.set(slots, 0.0)

    def choose(self, n: int, rng: np.random.Generator) -> Chosen:
        chosen = self.tree.choose(n, rng)
        if chosen is None:
            slots = np.flatnonzero(self.present)
            return rng.choice(slots, n), np.full(n, 1 / len(slots))
        return chosen

    def options(self) -> dict[str, Any]:
        return {"exponent": self.exponent}

    def total_weight(self) -> float:
        return self.tree.total

    def state(self) -> dict[str, Any]:
        return {"weights": self.tree.weights[: self.capacity].copy(), "there": self.present.copy()}

    def restore(self, state: dict[str, Any]) -> None:
        self.present = state["there"].copy()
        self.tree.set(np.arange(self.capacity), state["weights"])


class _Ordered(Selector):
    """Slots in the order of insertion: the entries of `order` from `head` to `tail`, where -1 marks removed slots."""

    uses_priorities = False
    step: int
    """1 to choose the oldest slot first, -1 to choose the newest first."""

    def allocate(self, capacity: int) -> None:
        super().allocate(capacity)
        self.order = np.zeros(2 * capacity, INDEX)
        self.place = np.full(capacity, -1, INDEX)
        self.head = self.tail = self.size = 0

    def insert(self, slots: Slots, priorities: np.ndarray) -> None:
        new = _absent(slots, self.place)
        if self.tail + len(new) > len(self.order):
            self._compact()
        end = self.tail + len(new)
        self.order[self.tail : end] = new
        self.place[as_slice(new)] = np.arange(self.tail, end)
        self.tail = end
        self.size += len(new)

    def remove(self, slots: Slots) -> None:
        self.order[self.place[slots]] = -1
        self.place[slots] = -1
        self.size -= len(slots)
        self._trim()
        if self.tail - self.head > 2 * self.size + SCAN:
            self._compact()

    def choose(self, n: int, rng: np.random.Generator) -> Chosen:
        return np.full(n, self._first(1)[0][0]), np.ones(n)

    def pop(self, n: int, rng: np.random.Generator) -> Chosen:
        slots, width = self._first(n)
        self.place[as_slice(slots)] = -1
        self.size -= n
        self._drop(width)
        return slots, np.ones(n)

    def _first(self, n: int) -> tuple[Slots, int]:
        """The next n slots, and how many entries of `order` they span, including removed slots."""
        width = n
        while True:
            part = self.order[self.head : self.tail][:: self.step][:width]
            if len(part) == n and part.min(initial=0) >= 0:
                return part.astype(np.int64), n
            found = np.flatnonzero(part >= 0)
            if len(found) >= n or width >= self.tail - self.head:
                return part[found[:n]].astype(np.int64), int(found[n - 1]) + 1 if n else 0
            width *= 4

    def _drop(self, count: int) -> None:
        """Drop entries at the end of `order` that is chosen from."""
        if self.step > 0:
            self.head += count
        else:
            self.tail -= count

    def _trim(self) -> None:
        """Drop the removed slots at the end of `order` that is chosen from."""
        while self.head < self.tail:
            removed = self.order[self.head : self.tail][:: self.step][:SCAN] < 0
            count = len(removed) if removed.all() else int(removed.argmin())
            self._drop(count)
            if count < SCAN:
                break

    def _compact(self) -> None:
        present = self.order[self.head : self.tail]
        present = present[present >= 0]
        self.head, self.tail = 0, len(present)
        self.order[: self.tail] = present
        self.place[present] = np.arange(self.tail)


class Fifo(_Ordered):
    """The oldest slot."""

    step = 1


class Lifo(_Ordered):
    """The newest slot."""

    step = -1


class _Heap(Selector):
    """The slot with the lowest `sign * priority`; among equals, the oldest."""

    sign: int

    def __init__(self) -> None:
        self.entries: dict[int, tuple[float, int, int]] = {}
        """The current entry of each slot: `sign * priority`, insertion number, slot. The heap also holds stale ones."""
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

    def pop(self, n: int, rng: np.random.Generator) -> Chosen:
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
    """The slot with the lowest priority; among equals, the oldest."""

    sign = 1


class MaxHeap(_Heap):
    """The slot with the highest priority; among equals, the oldest."""

    sign = -1


SELECTORS: dict[str, type[Selector]] = {
    "uniform": Uniform,
    "prioritised": Prioritised,
    "fifo": Fifo,
    "lifo": Lifo,
    "minheap": MinHeap,
    "maxheap": MaxHeap,
}
"""Selectors by the names that declarations use. Add an entry to make a selector available by name."""


def parse_selector(text: str, role: str = "selector") -> Selector:
    """A new selector from its name and options: `fifo`, `prioritised:0.6`. Errors call it `role`."""
    return from_text(text, {name: kind.from_text for name, kind in SELECTORS.items()}, role)


def describe_selector(selector: Selector) -> list[Any]:
    """The class name of a selector and its options, as a checkpoint stores them."""
    return [type(selector).__name__, selector.options()]


def make_selector(description: list[Any]) -> Selector | None:
    """A new selector from its description in a checkpoint; None if its class is not registered."""
    class_name, options = description
    kinds = {kind.__name__: kind for kind in SELECTORS.values()}
    return kinds[class_name](**options) if class_name in kinds else None


def importance_weights(probability: np.ndarray, size: int, exponent: float) -> np.ndarray:
    """Weights that correct the bias of prioritised sampling: (size * p) ** -exponent, divided by their maximum.

    >>> importance_weights(np.array([0.5, 0.25]), size=4, exponent=1.0).tolist()
    [0.5, 1.0]
    """
    weights = (size * np.asarray(probability, np.float64)) ** -exponent
    weights /= weights.max()
    return weights


def _absent(slots: Slots, place: np.ndarray) -> Slots:
    """The slots that are not present yet: `place` is -1 for them."""
    places = place.take(slots)
    return slots if places.max(initial=-1) < 0 else slots[places < 0]
