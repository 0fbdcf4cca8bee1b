"""What of an item is read when it is sampled, and in which form."""

from typing import Any, Protocol

import numpy as np

from weft.replay.items import Items
from weft.replay.store import Store


class Pattern(Protocol):
    """Reads the steps of sampled items from a store; `longest` is the most steps that an item of the table has."""

    def read(self, store: Store, items: Items, longest: int) -> Any: ...


class Whole:
    """Items as they are, all columns: [n, ...] if they are of one step, else [n, longest, ...] zeros at the end."""

    def read(self, store: Store, items: Items, longest: int) -> Any:
        if longest == 1:
            return store.read(items.start)
        data = store.read(positions(store, items, longest))
        beyond = past_end(items, longest)
        if beyond.any():
            for column in store.structure.flatten(data):
                column[beyond] = 0
        return data


def positions(store: Store, items: Items, longest: int) -> np.ndarray:
    """Where the steps of items are, and of the steps after them: int64[n, longest]."""
    return items.start[:, None] + np.arange(0, longest * store.rows, store.rows)


def past_end(items: Items, longest: int) -> np.ndarray:
    """Which of `longest` steps are not in an item any more: bool[n, longest]."""
    return np.arange(longest) >= items.length[:, None]
