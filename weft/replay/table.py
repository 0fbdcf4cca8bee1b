"""A table: items over the steps of a store, sampled and removed by selectors, at the pace that a limiter allows.

Everything is arrays, batch first. The simplest table has a store of its own, and every step is an item:

>>> table = Table({"obs": np.zeros(2, np.float32), "reward": np.float32(0)}, capacity=100)
>>> keys = table.insert({"obs": np.ones((3, 2)), "reward": np.arange(3)})
>>> sample = table.sample(4)
>>> sample.data["obs"].shape, sample.info.probability.round(2).tolist(), sample.info.table_size
((4, 2), [0.33, 0.33, 0.33, 0.33], 3)
>>> table.update(keys, [0.5, 2.0, 1.0]), table.delete(keys[:1]), table.size
(3, 1, 2)

Items of several steps are rows of integers over a store, which several tables may share: see `insert_items`, and
`Writer`, which makes them. An item whose steps the store writes over has gone; a table with a store of its own that is
filled by `insert` keeps each step as long as its item.

All calls are safe from any thread: tables of one store share its lock. A call that the limiter does not allow yet
waits, at most `timeout` seconds (for ever, if None), and then says why.
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
    """Items that can be inserted, sampled, updated and deleted, all in batches."""

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
        """At most `capacity` items of at most `length` steps; `max_times_sampled` 0 is without a limit."""
        if (signature is None) == (store is None):
            raise WeftError(f"table {name!r}: give either a signature, for a store of its own, or a store")
        if capacity < 1 or length < 1 or max_times_sampled < 0:
            raise WeftError(f"table {name!r}: capacity {capacity}, length {length}, sampled {max_times_sampled} times")
        self.name, self.capacity, self.length, self.pattern = name, capacity, length, pattern or Whole()
        self.store = Store(signature, capacity * length) if store is None else store
        self.owns_store = store is None
        self.sampler, self.remover = sampler or Uniform(), remover or Fifo()
        self.sampler.allocate(capacity)
        self.remover.allocate(capacity)
        self.max_times_sampled = max_times_sampled
        self.rng = np.random.default_rng(seed)
        self._items, self._starts = ItemArrays(capacity), None
        self._parts = {"items": self._items, "sampler": self.sampler, "remover": self.remover}
        self._lock = self.store.lock
        self._limiter = BlockingLimiter(name, self._lock, self._items, limiter or MinimumSize(1), max_times_sampled)
        self.pattern.read(self.store, self.items(), length)  # Refuses what it cannot read.
        self.store.readers.append(self)

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
        """The highest so far, and at least 1; what is inserted without a priority gets it."""
        return self._limiter.counts.max_priority

    @property
    def limiter(self) -> Limiter:
        """May be changed at any time; whoever waits is judged by the new one."""
        return self._limiter.limiter

    @limiter.setter
    def limiter(self, limiter: Limiter) -> None:
        with self._lock:
            self._limiter.change(limiter)

    def insert(self, steps: Any, priority: Any = None, timeout: float | None = None) -> np.ndarray:
        """Make every step, leaves [n, ...], an item; at the highest priority so far if none is given. The keys."""
        arrays, n = self.store.check(steps)
        priorities = None if priority is None else check_priorities(priority, n)
        with self._lock:
            self._limiter.wait_to_insert(n, timeout)
            if not self.owns_store:
                starts = self.store.append_checked(arrays, n)
                return self._enter(self._slots_for(n), starts, 1, priorities)
            self.store.claim()
            slots = self._slots_for(n)
            self.store.put(arrays, as_slice(slots))
            return self._enter(slots, slots, 1, priorities)

    def insert_items(self, start: Any, length: Any, priority: Any = None, timeout: float | None = None) -> np.ndarray:
        """Make items of runs of steps of the store: the positions of their first steps, and their lengths. The keys."""
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
                raise WeftError(f"table {self.name!r}: some of the items' steps are not in the store, or not any more")
            return self._enter(self._slots_for(len(start)), start, length, priorities)

    def allow_insert(self, n: int, timeout: float | None = None) -> None:
        """Come back when n items may be inserted, and not later; for those who insert in several steps."""
        with self._lock:
            self._limiter.wait_to_insert(n, timeout)

    def sample(
        self, n: int, timeout: float | None = None, *, seed: Seed | None = None, pattern: Pattern | None = None
    ) -> Sample:
        """Draw n items; with `seed`, as a function of that and of what is in the table. They are read by `pattern`, or
        by the table's own."""
        with self._lock:
            self._limiter.wait_to_sample(n, timeout)
            size = self._items.size
            slots, probabilities = self._draw(n, self.rng if seed is None else np.random.default_rng(seed))
            drawn = self._items.at(slots)
            data = (pattern or self.pattern).read(self.store, drawn, self.length)
            if self.max_times_sampled:
                # The sampler has let these go already.
                exhausted = np.unique(slots[drawn.times_sampled >= self.max_times_sampled])
                self.remover.remove(exhausted)
                self._leave(exhausted)
            self._limiter.count_sampled(n)
        return Sample(data, Info(drawn.key, probabilities, drawn.priority, drawn.times_sampled, drawn.length, size))

    def update(self, keys: Any, priorities: Any) -> int:
        """Give items new priorities; keys of items that have gone are passed over. How many were found."""
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
        """Remove items; keys of items that have gone are passed over. How many were found."""
        with self._lock:
            slots = np.unique(self._items.find(keys)[0])
            self._remove(slots)
            self._limiter.counts.deleted += len(slots)
            return len(slots)

    def reset(self) -> None:
        """Remove all items and count from zero again; the steps of a shared store stay."""
        with self._lock:
            self._remove(self._items.occupied())
            self._limiter.counts = Counts()
            self._limiter.wake()

    def items(self, keys: Any = None) -> Items:
        """The items of these keys, save those that have gone; all items if none are given."""
        with self._lock:
            return self._items.at(self._items.occupied() if keys is None else self._items.find(keys)[0])

    def info(self) -> dict[str, Any]:
        """Counts since the last reset, what the limiter says of one item more, and the bytes of the steps."""
        with self._lock:
            one = (1, self.inserted, self.sampled, self.size)
            limiter = {"may_insert": self.limiter.may_insert(*one), "may_sample": self.limiter.may_sample(*one)}
            about = {"name": self.name, "capacity": self.capacity, "size": self.size, "bytes": self.store.bytes}
            return {**about, **asdict(self._limiter.counts), "limiter": str(self.limiter), **limiter}

    def close(self) -> None:
        """Let nobody wait any more: whoever does, or comes later, gets an error."""
        with self._lock:
            self._limiter.closed = True
            self._limiter.wake()
            self.store.readers = [reader for reader in self.store.readers if reader is not self]

    def overwritten(self, places: np.ndarray) -> None:
        """The store is about to write over these places."""
        if self._starts is not None and len(slots := self._starts.at(places)):
            self._remove(slots)
            self._limiter.counts.lost += len(slots)

    def state(self) -> dict[str, Any]:
        """What must be saved beside the store to go on exactly: arrays, and values that JSON can hold."""
        with self._lock:
            parts = {name: part.state() for name, part in self._parts.items()}
            return {**parts, "rng": self.rng.bit_generator.state, "counts": asdict(self._limiter.counts)}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `state` of a table made with the same arguments gave; its store is restored before."""
        if len(state["items"]["key"]) != self.capacity:
            saved = len(state["items"]["key"])
            raise WeftError(f"table {self.name!r} holds {self.capacity} items and the saved {saved}")
        with self._lock:
            for name, part in self._parts.items():
                part.restore(state[name])
            self.rng.bit_generator.state = state["rng"]
            self._limiter.counts = Counts(**state["counts"])
            slots = self._items.occupied()
            self._starts = None
            self._note_starts(slots, self._items.start[slots])
            self._limiter.wake()

    def _enter(self, slots: np.ndarray, starts: np.ndarray, length: Any, priorities: np.ndarray | None) -> np.ndarray:
        if priorities is None:
            priorities = repeated(self.max_priority, len(slots))
        else:
            self._limiter.counts.raise_priority(priorities)
        keys = self._items.enter(slots, start=starts, length=length, priority=priorities)
        self._note_starts(slots, starts)
        self.sampler.insert(slots, priorities)
        self.remover.insert(slots, priorities)
        self._limiter.count_inserted(len(slots))
        return keys

    def _slots_for(self, n: int) -> np.ndarray:
        """Slots for n new items; the remover says who goes for them."""
        excess = self._items.size + n - self.capacity
        if excess > 0:
            slots, _ = self.remover.pop(excess, self.rng)
            # All of these slots are given to new items at once, which for some samplers is a change and no more.
            if not self.sampler.insert_replaces:
                self.sampler.remove(slots)
            self._leave(slots)
            self._limiter.counts.removed += excess
        return self._items.free_slots(n)

    def _draw(self, n: int, rng: np.random.Generator) -> Chosen:
        """n slots, counted as sampled; the sampler lets go of those that must not be drawn again."""
        if self.max_times_sampled > 1:
            return self._draw_again(n, rng)
        slots, probabilities = self.sampler.pop(n, rng) if self.max_times_sampled else self.sampler.choose(n, rng)
        self._items.count_draws(slots)
        return slots, probabilities

    def _draw_again(self, n: int, rng: np.random.Generator) -> Chosen:
        """As to draw one after the other: what would be drawn too often is drawn again, from what is left."""
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
        self._leave(slots)
        self._limiter.wake()

    def _leave(self, slots: np.ndarray) -> None:
        if self._starts is not None:
            self._starts.remove(slots, self._items.start[slots] % self.store.capacity)
        self._items.leave(slots)

    def _note_starts(self, slots: np.ndarray, starts: np.ndarray) -> None:
        # Without items it is not known yet whether the store will have rings.
        if len(slots) and not self.store.placed:
            self._starts = self._starts or StartIndex(self.store.capacity)
            self._starts.add(slots, starts % self.store.capacity)
