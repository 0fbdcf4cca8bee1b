"""The interface of selectors, which choose the items that a table samples, and those it removes when it is full.

A selector knows the slots of a table's items and their priorities. A new selector is a subclass with three methods:

>>> class Loudest(Selector):
...     "The slot with the highest priority."
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
>>> loudest.pop(2, np.random.default_rng(0))[0].tolist()
[1, 2]

`weft.replay.selectors.SELECTORS` gives selectors the names that declarations of tables use. The other methods and
attributes have defaults; override them for a selector with options, with a state that is not made of arrays and JSON
values, or with weights that several servers can share.

A selector has a state, so every table needs its own selectors.
"""

from abc import ABC, abstractmethod
from typing import Any, Self

import numpy as np

from weft.errors import WeftError

Slots = np.ndarray
Chosen = tuple[np.ndarray, np.ndarray]
"""Slots, int64[n], and the probability with which each was chosen, float64[n]."""


class Selector(ABC):
    """Chooses slots of a table; subclasses implement `insert`, `remove` and `choose`."""

    capacity = 0
    """Number of slots of the selector's table."""
    uses_priorities = True
    """Whether the choice depends on priorities; if not, the selector is not told when they change."""
    insert_replaces = False
    """Whether inserting a slot that is present is equivalent to removing it first."""

    @abstractmethod
    def insert(self, slots: Slots, priorities: np.ndarray) -> None:
        """Add new slots, or change the priorities of slots that are present."""

    @abstractmethod
    def remove(self, slots: Slots) -> None:
        """Remove slots; all are present, and each is given once."""

    @abstractmethod
    def choose(self, n: int, rng: np.random.Generator) -> Chosen:
        """Choose n slots independently, with replacement. At least one slot is present."""

    def pop(self, n: int, rng: np.random.Generator) -> Chosen:
        """Choose n different slots, one after the other, and remove each when it is chosen."""
        chosen: list[Chosen] = []
        while n:
            # Rejecting repeated slots and drawing again has the distribution of drawing from the rest.
            slots, probabilities = self.choose(n, rng)
            first = np.sort(np.unique(slots, return_index=True)[1])
            chosen.append((slots[first], probabilities[first]))
            self.remove(slots[first])
            n -= len(first)
        return concatenated(chosen)

    def allocate(self, capacity: int) -> None:
        """Allocate memory for a table's slots; called once."""
        if self.capacity:
            raise WeftError(f"this {type(self).__name__} belongs to another table: give each table its own selectors")
        self.capacity = capacity

    @classmethod
    def from_text(cls, options: str) -> Self:
        """A selector from the text after the colon in `prioritised:0.6`: by default, numbers for the constructor."""
        return cls(*(float(number) for number in options.split(",") if number))

    def options(self) -> dict[str, Any]:
        """The constructor's keyword arguments, as JSON values; checkpoints store them."""
        return {}

    def total_weight(self) -> float | None:
        """The sum of the slots' weights, if slots are chosen in proportion to weights; else None.

        It lets several servers act as one table: see `weft.replay.server.sharded_table`.
        """
        return None

    def state(self) -> dict[str, Any]:
        """Everything that a checkpoint must hold to resume exactly: arrays, and JSON values."""
        return {name: value.copy() if isinstance(value, np.ndarray) else value for name, value in vars(self).items()}

    def restore(self, state: dict[str, Any]) -> None:
        """Resume from a result of `state`."""
        for name, value in state.items():
            setattr(self, name, value.copy() if isinstance(value, np.ndarray) else value)


def concatenated(chosen: list[Chosen]) -> Chosen:
    """Several choices as one."""
    if not chosen:
        return np.empty(0, np.int64), np.empty(0)
    return np.concatenate([slots for slots, _ in chosen]), np.concatenate([chances for _, chances in chosen])
