"""Patterns: what of an item is read when it is sampled, column by column, so that nothing else is moved.

A pattern says for every name of the sample what it is: the first step of a column, the last, all, some, or stacks of
frames. An n-step item is read as a transition by

>>> n_step = Pick({"obs": First(), "action": First(), "reward": All(), "last_obs": Last("obs")})
>>> store = Store({"obs": np.zeros(2), "action": 0, "reward": 0.0}, capacity=10)
>>> start = store.append({"obs": np.arange(8).reshape(4, 2), "action": [5, 6, 7, 8], "reward": [1, 2, 3, 4]})[:1]
>>> item = Items(key=start, start=start, length=np.array([3]), priority=start, times_sampled=start)
>>> data = n_step.read(store, item, longest=4)
>>> data["action"].tolist(), data["reward"].tolist(), data["last_obs"].tolist()
([5], [[1.0, 2.0, 3.0, 0.0]], [[4.0, 5.0]])

A name that is that of a nested column, such as "obs" of "obs/pixels" and "obs/speed", reads all that is in it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from weft.errors import WeftError
from weft.replay.items import Items
from weft.replay.nested import by_name
from weft.replay.store import Store


class Pattern(Protocol):
    """Reads the steps of sampled items from a store; `longest` is the most steps that an item of the table has."""

    def read(self, store: Store, items: Items, longest: int) -> Any: ...


class Part(Protocol):
    """Reads one name of a pattern; `column` is the one of the name unless the part says another."""

    @property
    def column(self) -> str | None: ...

    def read(self, store: Store, column: np.ndarray, items: Items, longest: int) -> np.ndarray: ...


@dataclass(frozen=True)
class Whole:
    """Items as they are, all columns: [n, ...] if they are of one step, else [n, longest, ...], zeros at the end."""

    def read(self, store: Store, items: Items, longest: int) -> Any:
        if longest == 1:
            return store.read(items.start)
        steps = np.arange(longest)
        data = store.read(items.start[:, None] + steps * store.rows)
        over = steps >= items.length[:, None]
        if over.any():
            for column in store.structure.flatten(data):
                column[over] = 0
        return data


@dataclass(frozen=True)
class Pick:
    """Every name of the sample, and what of which column it is."""

    parts: Mapping[str, Part]

    def read(self, store: Store, items: Items, longest: int) -> Any:
        found: dict[str, np.ndarray] = {}
        for name, part in self.parts.items():
            for inner, column in _within(store, part.column or name).items():
                found[name + inner] = part.read(store, column, items, longest)
        return by_name(list(found), found.values())


@dataclass(frozen=True)
class First:
    """The first step of an item: [n, ...]."""

    column: str | None = None

    def read(self, store: Store, column: np.ndarray, items: Items, longest: int) -> np.ndarray:
        return _take(column, items.start)


@dataclass(frozen=True)
class Last:
    """The last step of an item: [n, ...]."""

    column: str | None = None

    def read(self, store: Store, column: np.ndarray, items: Items, longest: int) -> np.ndarray:
        return _take(column, items.start + (items.length - 1) * np.int64(store.rows))


@dataclass(frozen=True)
class Steps:
    """The steps from `start` up to `stop`, as in a slice: [n, stop - start, ...], with zeros after an item's end."""

    start: int = 0
    stop: int | None = None
    column: str | None = None

    def read(self, store: Store, column: np.ndarray, items: Items, longest: int) -> np.ndarray:
        return self.each(store, items, longest, lambda positions: _take(column, positions))

    def each(self, store: Store, items: Items, longest: int, read: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """What `read` gives for the positions of the steps, with zeros where an item is over."""
        steps = np.arange(longest)[self.start : self.stop]
        data = read(items.start[:, None] + steps * store.rows)
        over = steps >= items.length[:, None]
        if over.any():
            data[over] = 0
        return data


def All(column: str | None = None) -> Steps:
    """All steps of an item: [n, longest, ...], zeros after its end."""
    return Steps(0, None, column)


@dataclass(frozen=True)
class FrameStack:
    """Each step of `of` with the `count` - 1 frames before it, the newest last: [..., count, ...].

    Frames do not cross the start of an episode, which the column `start` (true at the first step) or `ended` (true at
    the last) tells, nor do they go to before what the store holds: there the first frame is repeated.
    """

    count: int
    start: str | None = None
    ended: str | None = None
    of: First | Last | Steps = Steps()
    column: str | None = None

    def __post_init__(self) -> None:
        if self.count < 1 or (self.start is None) == (self.ended is None):
            raise WeftError(
                f"a stack of {self.count} frames with start={self.start!r} and ended={self.ended!r}: expected at least "
                "one frame, and one of both: the column that is true at an episode's first step, or at its last"
            )

    def read(self, store: Store, column: np.ndarray, items: Items, longest: int) -> np.ndarray:
        def stacked(positions: np.ndarray) -> np.ndarray:
            return _take(column, self._frames(store, positions))

        if isinstance(self.of, Steps):
            return self.of.each(store, items, longest, stacked)
        place = 0 if isinstance(self.of, First) else items.length - 1
        return stacked(items.start + place * np.int64(store.rows))

    def _frames(self, store: Store, positions: np.ndarray) -> np.ndarray:
        """The positions of the frames of each stack: [..., count]."""
        frames = [positions]
        for _ in range(self.count - 1):
            later, earlier = frames[0], frames[0] - store.rows
            same = store.holds(earlier)
            if self.start is not None:
                same &= ~_take(store.column(self.start), later).astype(bool)
            if self.ended is not None:
                same &= ~_take(store.column(self.ended), earlier).astype(bool)
            frames.insert(0, np.where(same, earlier, later))
        return np.stack(frames, axis=-1)


def _take(column: np.ndarray, positions: np.ndarray) -> np.ndarray:
    return column.take(positions % len(column), axis=0, mode="clip")


def _within(store: Store, name: str) -> dict[str, np.ndarray]:
    """The columns of a name by what follows it: itself, or all that are nested in it."""
    inside = {
        column[len(name) :]: store.column(column)
        for column in store.structure.names
        if column == name or column.startswith(name + "/")
    }
    return inside or {"": store.column(name)}
