"""A reference model of a table with plain dictionaries and lists, one item at a time."""

from dataclasses import dataclass, field

from weft.replay import Fifo, Lifo, Limiter, MaxHeap, MinHeap, Prioritised, Uniform

EXPONENT = 0.7
SELECTORS = {
    "uniform": Uniform,
    "fifo": Fifo,
    "lifo": Lifo,
    "min": MinHeap,
    "max": MaxHeap,
    "prioritised": lambda: Prioritised(EXPONENT),
}
RANDOM = ("uniform", "prioritised")


@dataclass
class Item:
    order: int
    start: int
    length: int
    priority: float
    times: int = 0


@dataclass
class TableModel:
    capacity: int
    sampler: str
    remover: str
    limiter: Limiter
    max_times: int
    items: dict[int, Item] = field(default_factory=dict)
    inserted: int = 0
    sampled: int = 0
    max_priority: float = 1.0
    order: int = 0

    def distribution(self, kind: str) -> dict[int, float]:
        """The probability of every item that can be chosen."""
        items = self.items
        firsts = {
            "fifo": lambda key: items[key].order,
            "lifo": lambda key: -items[key].order,
            "min": lambda key: (items[key].priority, items[key].order),
            "max": lambda key: (-items[key].priority, items[key].order),
        }
        if kind in firsts:
            return {min(items, key=firsts[kind]): 1.0}
        weights = {key: item.priority**EXPONENT for key, item in items.items() if item.priority > 0}
        if kind == "uniform" or not weights:
            return dict.fromkeys(items, 1 / len(items))
        return {key: weight / sum(weights.values()) for key, weight in weights.items()}

    def may_insert(self, n: int) -> bool:
        rule = self.limiter
        return len(self.items) + n <= rule.minimum or (self.inserted + n) * rule.ratio - self.sampled <= rule.most

    def may_sample(self, n: int) -> bool:
        rule = self.limiter
        left = sum(self.max_times - item.times for item in self.items.values())
        enough = len(self.items) >= rule.minimum and (not self.max_times or left >= n)
        return enough and self.inserted * rule.ratio - self.sampled - n >= rule.least

    def make_room(self, n: int, left: set[int]) -> None:
        """Remove as many as must go for n more, given the keys that the table has left: one of the choices allowed."""
        gone = [key for key in self.items if key not in left]
        assert len(gone) == max(0, len(self.items) + n - self.capacity)
        while gone:
            choice = self.distribution(self.remover)
            key = next(key for key in gone if key in choice)
            gone.remove(key)
            del self.items[key]

    def enter(self, keys: list[int], starts: list[int], lengths: list[int], priorities: list[float] | None) -> None:
        if priorities is None:
            priorities = [self.max_priority] * len(keys)
        self.max_priority = max([self.max_priority, *priorities])
        for key, start, length, priority in zip(keys, starts, lengths, priorities, strict=True):
            assert key not in self.items
            self.items[key] = Item(self.order, start, length, priority)
            self.order += 1
        self.inserted += len(keys)

    def draw(self, key: int) -> float:
        """One item is sampled; it must be one that could be. The probability that it had."""
        probability = self.distribution(self.sampler)[key]
        self.items[key].times += 1
        if self.items[key].times == self.max_times:
            del self.items[key]
        self.sampled += 1
        return probability

    def update(self, keys: list[int], priorities: list[float]) -> int:
        found = [(key, priority) for key, priority in zip(keys, priorities, strict=True) if key in self.items]
        for key, priority in found:
            self.items[key].priority = priority
            self.max_priority = max(self.max_priority, priority)
        return len(found)

    def delete(self, keys: list[int]) -> int:
        found = set(keys) & set(self.items)
        for key in found:
            del self.items[key]
        return len(found)

    def reset(self) -> None:
        self.items, self.inserted, self.sampled, self.max_priority = {}, 0, 0, 1.0
