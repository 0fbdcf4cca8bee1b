"""Samples read straight into the memory that they leave from.

A table reads sampled steps through a pattern. A server gives it one of its own in the place of the usual one, which
reads the same into memory that is used again and again: that of a client on the same host, or the server's own. This
spares a copy, and new memory for every sample, which costs as much.
"""

from typing import Any

import numpy as np

from weft.replay.items import Items
from weft.replay.patterns import Pattern, Whole
from weft.replay.server.shared import Room
from weft.replay.store import Store

DATA = "data/"
"""What the names of a step's columns begin with on the wire."""


class WholeInto:
    """Items as they are, as `Whole` reads them, in a given room."""

    def __init__(self, room: Room) -> None:
        self.room = room

    def read(self, store: Store, items: Items, longest: int) -> Any:
        steps = np.arange(longest)
        places = (items.start[:, None] + steps * store.rows if longest > 1 else items.start) % store.capacity
        read: list[np.ndarray] = []
        for name, column in zip(store.structure.names, store.columns, strict=True):
            array = self.room.new(DATA + name, (*places.shape, *column.shape[1:]), column.dtype)
            np.take(column, places, axis=0, out=array, mode="clip")
            read.append(array)
        over = steps >= items.length[:, None]
        if over.any():
            for array in read:
                array[over] = 0
        return store.structure.unflatten(read)


def reading_into(room: Room | None, pattern: Pattern) -> Pattern:
    """What reads the same as a pattern, in a room if it can."""
    return pattern if room is None or type(pattern) is not Whole else WholeInto(room)
