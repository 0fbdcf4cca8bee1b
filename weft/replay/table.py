"""A replay table: items over the steps of a store, chosen by selectors and rate-limited by a limiter.

All arguments and results are arrays, batch first. The simplest table owns its store, and every step is an item:

>>> table = Table({"obs": np.zeros(2, np.float32), "reward": np.float32(0)}, capacity=100)
>>> keys = table.insert({"obs": np.ones((3, 2)), "reward": np.arange(3)})
>>> sample = table.sample(4)
>>> sample.data["obs"].shape, sample.info.probability.round(2).tolist(), sample.info.table_size
((4, 2), [0.33, 0.33, 0.33, 0.33], 3)
>>> table.update(keys, [0.5, 2.0, 1.0]), table.delete(keys[:1]), table.size
(3, 1, 2)

Items of several steps refer to a store that several tables may share: see `insert_items`, and `Writer`, which creates
them. The table drops an item when the store overwrites its first step. A table that owns its store and is filled by
`insert` keeps each step as long as its item.

All methods are thread-safe; tables that share a store share its lock. A call that the limiter does not allow yet blocks
for at most `timeout` seconds (None: without limit), and then raises `LimiterTimeout` with the reason.
"""

from dataclasses import asdict
from typing import Any

import numpy as np

from weft.errors import WeftError
from weft.replay.blocking import BlockingLimiter, Counts
from weft.replay.items import Info, ItemArrays, Items, Sample, StartIndex, check_priorities, repeated
from weft.replay.limiter import Limiter, MinimumSize
from weft.replay.patterns import Pattern, Whole
from weft.replay.selector import Chosen, Selector, concatenated
from weft.replay.selectors import Fifo, Uniform
from weft.replay.store import Store, as_slice, count_earlier_equal

Seed = int | np.random.Generator


class Table:
    """Items that are inserted, sampled, updated and deleted in batches."""

    def __init__(
        self,
        signature: Any = None,
        *,
        capacity: int,
        store: Store | None = None,
        name: str = "table",
        length: int = 1,
        sampler: Selector | None = None,
        remover: Selector | None = None,
        limiter: Limiter | None = None,
        max_times_sampled: int = 0,
        pattern: Pattern | None = None,
        seed: int = 0,
    ) -> None:
        """A table of at most `capacity` items of at most `length` steps.

        Give the `signature` of a step (shapes and dtypes) for a table that owns its store, or else a `store`. An item
        is removed after it was sampled `max_times_sampled` times; 0 means no limit.
        """
        if (signature is None) == (store is None):
            raise WeftError(f"table {name!r}: give either a signature (the table then owns its store) or a store")
        if capacity < 1 or length < 1 or max_times_sampled < 0:
            raise WeftError(
                f"table {name!r}: capacity is {capacity}, length {length} and max_times_sampled {max_times_sampled}: "
                "expected at least 1, 1 and 0"
            )
        self.name, self.capacity, self.length, self.pattern = name, capacity, length, pattern or Whole()
        self.store = Store(signature, capacity * length) if store is None else store
        self.owns_store = store is None
        self.sampler, self.remover = sampler or Uniform(), remover or Fifo()
        self.sampler.allocate(capacity)
        self.remover.allocate(capacity)
        self.max_times_sampled = max_times_sampled
        self.rng = np.random.default_rng(seed)
        self._items, self._starts = ItemArrays(capacity), None
        self._stateful = {"items": self._items, "sampler": self.sampler, "remover": self.remover}
        self._lock = self.store.lock
        self._limiter = BlockingLimiter(name, self._lock, self._items, limiter or MinimumSize(1), max_times_sampled)
        self.pattern.read(self.store, self.items(), length)  # Raises now if the pattern cannot read the store.
        self.store.listeners.append(self)

    @property
    def size(self) -> int:
        return self._items.size

    @property
    def inserted(self) -> int:
        """Items inserted since the last reset."""
        return self._limiter.counts.inserted

    @property
    def sampled(self) -> int:
        """Items sampled since the last reset."""
        return self._limiter.counts.sampled

    @property
    def max_priority(self) -> float:
        """The highest priority so far, at least 1: the priority of items that are inserted without one."""
        return self._limiter.counts.max_priority

    @property
    def limiter(self) -> Limiter:
        """The limiter; it can be replaced at any time, also while calls wait."""
        return self._limiter.limiter

    @limiter.setter
    def limiter(self, limiter: Limiter) -> None:
        with self._lock:
            self._limiter.replace(limiter)

    def insert(self, steps: Any, priority: Any = None, timeout: float | None = None) -> np.ndarray:
        """Insert steps, leaves [n, ...], each as an item; return the keys. The default priority is `max_priority`."""
        arrays, n = self.store.check(steps)
        priorities = None if priority is None else check_priorities(priority, n)
        with self._lock:
            self._limiter.wait_to_insert(n, timeout)
            if not self.owns_store:
                starts = self.store.append_checked(arrays, n)
                return self._add(self._make_room(n), starts, 1, priorities)
            self.store.use_slot_addressing()
            slots = self._make_room(n)
            self.store.write(arrays, as_slice(slots))
            return self._add(slots, slots, 1, priorities)

    def insert_items(self, start: Any, length: Any, priority: Any = None, timeout: float | None = None) -> np.ndarray:
        """Insert items over steps in the store, by the positions of their first steps and lengths; return the keys."""
        start = np.asarray(start, np.int64).reshape(-1)
        length = np.asarray(length, np.int64)
        if length.shape != start.shape:
            length = np.broadcast_to(length, start.shape)
        priorities = None if priority is None else check_priorities(priority, len(start))
        if len(start) and not (length.min() >= 1 and length.max() <= self.length):
            raise WeftError(
                f"table {self.name!r}: items of {length.min()} to {length.max()} steps: expected 1 to {self.length}"
            )
        with self._lock:
            self._limiter.wait_to_insert(len(start), timeout)
            ends = (start, start + (length - 1) * self.store.rows) if self.length > 1 else (start,)
            if not all(self.store.holds(positions).all() for positions in ends):
                raise WeftError(
                    f"table {self.name!r}: some of the items' steps are not in the store: expected positions of steps "
                    "that were written and not yet overwritten"
                )
            return self._add(self._make_room(len(start)), start, length, priorities)

    def wait_to_insert(self, n: int, timeout: float | None = None) -> None:
        """Block until the limiter allows n inserts. Hold the store's lock if the inserts follow in several calls."""
        with self._lock:
            self._limiter.wait_to_insert(n, timeout)

    def sample(
        self, n: int, timeout: float | None = None, *, seed: Seed | None = None, pattern: Pattern | None = None
    ) -> Sample:
        """Sample n items and read them with `pattern`, by default the table's.

        With a `seed`, the sample depends only on the seed and on the table's contents.
        """
        with self._lock:
            self._limiter.wait_to_sample(n, timeout)
            size = self._items.size
            slots, probabilities = self._draw(n, self.rng if seed is None else np.random.default_rng(seed))
            drawn = self._items.read(slots)
            data = (pattern or self.pattern).read(self.store, drawn, self.length)
            if self.max_times_sampled:
                # `_draw` has removed these from the sampler already.
                exhausted = np.unique(slots[drawn.times_sampled >= self.max_times_sampled])
                self.remover.remove(exhausted)
                self._free(exhausted)
            self._limiter.count_sampled(n)
        return Sample(data, Info(drawn.key, probabilities, drawn.priority, drawn.times_sampled, drawn.length, size))

    def update(self, keys: Any, priorities: Any) -> int:
        """Set the priorities of items and return how many were found; keys of removed items are ignored."""
        keys = np.asarray(keys, np.uint64).reshape(-1)
        values = check_priorities(priorities, len(keys))
        with self._lock:
            slots, found = self._items.find(keys)
            if len(slots):
                values = values if len(slots) == len(values) else values[found]
                self._items.priority[slots] = values
                self._limiter.counts.raise_priority(values)
                for selector in (self.sampler, self.remover):
                    if selector.uses_priorities:
                        selector.insert(slots, values)
            return len(slots)

    def delete(self, keys: Any) -> int:
        """Remove items and return how many were found; keys of removed items are ignored."""
        with self._lock:
            slots = np.unique(self._items.find(keys)[0])
            self._remove(slots)
            self._limiter.counts.deleted += len(slots)
            return len(slots)

    def reset(self) -> None:
        """Remove all items and set the counts to zero; the steps of a shared store stay."""
        with self._lock:
            self._remove(self._items.occupied())
            self._limiter.counts = Counts()
            self._limiter.wake()

    def items(self, keys: Any = None) -> Items:
        """The items with these keys, without those that were removed; all items if no keys are given."""
        with self._lock:
            return self._items.read(self._items.occupied() if keys is None else self._items.find(keys)[0])

    def info(self) -> dict[str, Any]:
        """Counts since the last reset, whether the limiter allows one more item, and the store's size in bytes."""
        with self._lock:
            one = (1, self.inserted, self.sampled, self.size)
            limiter = {"may_insert": self.limiter.may_insert(*one), "may_sample": self.limiter.may_sample(*one)}
            table = {"name": self.name, "capacity": self.capacity, "size": self.size, "bytes": self.store.bytes}
            return {**table, **asdict(self._limiter.counts), "limiter": str(self.limiter), **limiter}

    def close(self) -> None:
        """Close the table: waiting and later calls that would insert or sample raise an error."""
        with self._lock:
            self._limiter.closed = True
            self._limiter.wake()
            self.store.listeners = [other for other in self.store.listeners if other is not self]

    def on_overwrite(self, indices: np.ndarray) -> None:
        """Remove the items that start at these indices of the store, which is about to overwrite them."""
        if self._starts is not None and len(slots := self._starts.find(indices)):
            self._remove(slots)
            self._limiter.counts.lost += len(slots)

    def state(self) -> dict[str, Any]:
        """Everything besides the store that a checkpoint must hold: arrays, and JSON values."""
        with self._lock:
            states = {name: each.state() for name, each in self._stateful.items()}
            return {**states, "rng": self.rng.bit_generator.state, "counts": asdict(self._limiter.counts)}

    def restore(self, state: dict[str, Any]) -> None:
        """Resume from the `state` of a table made with the same arguments; restore its store first."""
        if len(state["items"]["key"]) != self.capacity:
            saved = len(state["items"]["key"])
            raise WeftError(
                f"table {self.name!r} holds {self.capacity} items and the saved one {saved}: give equal capacities"
            )
        with self._lock:
            for name, each in self._stateful.items():
                each.restore(state[name])
            self.rng.bit_generator.state = state["rng"]
            self._limiter.counts = Counts(**state["counts"])
            slots = self._items.occupied()
            self._starts = None
            self._index_starts(slots, self._items.start[slots])
            self._limiter.wake()

    def _add(self, slots: np.ndarray, starts: np.ndarray, length: Any, priorities: np.ndarray | None) -> np.ndarray:
        if priorities is None:
            priorities = repeated(self.max_priority, len(slots))
        else:
            self._limiter.counts.raise_priority(priorities)
        keys = self._items.add(slots, start=starts, length=length, priority=priorities)
        self._index_starts(slots, starts)
        self.sampler.insert(slots, priorities)
        self.remover.insert(slots, priorities)
        self._limiter.count_inserted(len(slots))
        return keys

    def _make_room(self, n: int) -> np.ndarray:
        """Slots for n new items; if the table is full, the remover chooses items to remove."""
        excess = self._items.size + n - self.capacity
        if excess > 0:
            slots, _ = self.remover.pop(excess, self.rng)
            # New items reuse all of these slots at once, so a sampler whose `insert` replaces needs no removal.
            if not self.sampler.insert_replaces:
                self.sampler.remove(slots)
            self._free(slots)
            self._limiter.counts.removed += excess
        return self._items.free_slots(n)

    def _draw(self, n: int, rng: np.random.Generator) -> Chosen:
        """Draw n slots and count them as sampled; slots that reach `max_times_sampled` are removed from the sampler."""
        if self.max_times_sampled > 1:
            return self._draw_with_limit(n, rng)
        slots, probabilities = self.sampler.pop(n, rng) if self.max_times_sampled else self.sampler.choose(n, rng)
        self._items.count_draws(slots)
        return slots, probabilities

    def _draw_with_limit(self, n: int, rng: np.random.Generator) -> Chosen:
        """As `_draw`, for several samples per item: draws beyond the limit are rejected and repeated."""
        drawn: list[Chosen] = []
        while n:
            slots, probabilities = self.sampler.choose(n, rng)
            allowed = count_earlier_equal(slots) < self.max_times_sampled - self._items.times_sampled[slots]
            slots = slots[allowed]
            self._items.count_draws(slots)
            self.sampler.remove(np.unique(slots[self._items.times_sampled[slots] >= self.max_times_sampled]))
            drawn.append((slots, probabilities[allowed]))
            n -= len(slots)
        return concatenated(drawn)

    def _remove(self, slots: np.ndarray) -> None:
        self.sampler.remove(slots)
        self.remover.remove(slots)
        self._free(slots)
        self._limiter.wake()

    def _free(self, slots: np.ndarray) -> None:
        if self._starts is not None:
            self._starts.remove(slots, self._items.start[slots] % self.store.capacity)
        self._items.remove(slots)

    def _index_starts(self, slots: np.ndarray, starts: np.ndarray) -> None:
        # An empty table does not know yet whether the store will be filled by `append` or by `insert`.
        if len(slots) and not self.store.slot_addressed:
            self._starts = self._starts or StartIndex(self.store.capacity)
            self._starts.add(slots, starts % self.store.capacity)
