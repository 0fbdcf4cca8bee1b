"""Patterns select the parts of an item that a sample contains, column by column, so that nothing else is copied.

A pattern maps each name in the sample to a part of a column: its first step, its last, all, some, or stacks of frames.
This pattern reads an n-step item as a transition:

>>> n_step = Pick({"obs": First(), "action": First(), "reward": All(), "last_obs": Last("obs")})
>>> store = Store({"obs": np.zeros(2), "action": 0, "reward": 0.0}, capacity=10)
>>> start = store.append({"obs": np.arange(8).reshape(4, 2), "action": [5, 6, 7, 8], "reward": [1, 2, 3, 4]})[:1]
>>> item = Items(key=start, start=start, length=np.array([3]), priority=start, times_sampled=start)
>>> data = n_step.read(store, item, longest=4)
>>> data["action"].tolist(), data["reward"].tolist(), data["last_obs"].tolist()
([5], [[1.0, 2.0, 3.0, 0.0]], [[4.0, 5.0]])

The name of a nested column, such as "obs" for "obs/pixels" and "obs/speed", reads all columns inside it.
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
    """Reads sampled items from a store; `longest` is the maximum length of the table's items."""

    def read(self, store: Store, items: Items, longest: int) -> Any: ...


class Part(Protocol):
    """Reads one name of a pattern, from `column` or, if that is None, from the column of that name."""

    @property
    def column(self) -> str | None: ...

    def read(self, store: Store, column: np.ndarray, items: Items, longest: int) -> np.ndarray: ...


@dataclass(frozen=True)
class Whole:
    """All columns of the items: [n, ...] if `longest` is 1, else [n, longest, ...] with zeros after an item's end."""

    def read(self, store: Store, items: Items, longest: int) -> Any:
        if longest == 1:
            return store.read(items.start)
        steps = np.arange(longest)
        data = store.read(items.start[:, None] + steps * store.rows)
        beyond_end = steps >= items.length[:, None]
        if beyond_end.any():
            for column in store.structure.flatten(data):
                column[beyond_end] = 0
        return data


@dataclass(frozen=True)
class Pick:
    """The parts to read, by their names in the sample."""

    parts: Mapping[str, Part]

    def read(self, store: Store, items: Items, longest: int) -> Any:
        columns: dict[str, np.ndarray] = {}
        for name, part in self.parts.items():
            for suffix, column in _columns_under(store, part.column or name).items():
                columns[name + suffix] = part.read(store, column, items, longest)
        return by_name(list(columns), columns.values())


@dataclass(frozen=True)
class First:
    """The first step of an item: [n, ...]."""

    column: str | None = None

    def read(self, store: Store, column: np.ndarray, items: Items, longest: int) -> np.ndarray:
        return _read_column(column, items.start)


@dataclass(frozen=True)
class Last:
    """The last step of an item: [n, ...]."""

    column: str | None = None

    def read(self, store: Store, column: np.ndarray, items: Items, longest: int) -> np.ndarray:
        return _read_column(column, items.start + (items.length - 1) * np.int64(store.rows))


@dataclass(frozen=True)
class Steps:
    """The steps `start:stop` of an item: [n, stop - start, ...], with zeros after its end."""

    start: int = 0
    stop: int | None = None
    column: str | None = None

    def read(self, store: Store, column: np.ndarray, items: Items, longest: int) -> np.ndarray:
        return self.read_steps(store, items, longest, lambda positions: _read_column(column, positions))

    def read_steps(
        self, store: Store, items: Items, longest: int, read: Callable[[np.ndarray], np.ndarray]
    ) -> np.ndarray:
        """The result of `read` at the positions of the selected steps, with zeros after an item's end."""
        steps = np.arange(longest)[self.start : self.stop]
        data = read(items.start[:, None] + steps * store.rows)
        beyond_end = steps >= items.length[:, None]
        if beyond_end.any():
            data[beyond_end] = 0
        return data


def All(column: str | None = None) -> Steps:
    """All steps of an item: [n, longest, ...], zeros after its end."""
    return Steps(0, None, column)


@dataclass(frozen=True)
class FrameStack:
    """Each step of `of` with the `count` - 1 frames before it, the newest last: [..., count, ...].

    A stack does not cross the start of an episode, given by the column `start` (true at the first step) or `ended`
    (true at the last step), nor the oldest step in the store: the first frame is repeated instead.
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
                "one frame, and either start= or ended=: a column that is true at an episode's first or last step"
            )

    def read(self, store: Store, column: np.ndarray, items: Items, longest: int) -> np.ndarray:
        def stacked(positions: np.ndarray) -> np.ndarray:
            return _read_column(column, self._frames(store, positions))

        if isinstance(self.of, Steps):
            return self.of.read_steps(store, items, longest, stacked)
        step = 0 if isinstance(self.of, First) else items.length - 1
        return stacked(items.start + step * np.int64(store.rows))

    def _frames(self, store: Store, positions: np.ndarray) -> np.ndarray:
        """The positions of the frames of each stack: [..., count]."""
        frames = [positions]
        for _ in range(self.count - 1):
            later, earlier = frames[0], frames[0] - store.rows
            same_episode = store.holds(earlier)
            if self.start is not None:
                same_episode &= ~_read_column(store.column(self.start), later).astype(bool)
            if self.ended is not None:
                same_episode &= ~_read_column(store.column(self.ended), earlier).astype(bool)
            frames.insert(0, np.where(same_episode, earlier, later))
        return np.stack(frames, axis=-1)


def _read_column(column: np.ndarray, positions: np.ndarray) -> np.ndarray:
    return column.take(positions % len(column), axis=0, mode="clip")


def _columns_under(store: Store, name: str) -> dict[str, np.ndarray]:
    """The column `name`, or the columns nested in it, by the rest of their names."""
    columns = {
        column[len(name) :]: store.column(column)
        for column in store.structure.names
        if column == name or column.startswith(name + "/")
    }
    return columns or {"": store.column(name)}
