"""Sampling in proportion to priorities, with a tree of sums that works on whole batches.

Every node of the tree has sixteen children. A batch goes down all at once: for each draw the sums before each child are
one product with a triangle of ones, and the child is found by counting the sums that the draw is not below. The top is
searched by its cumulative sum, which is kept until something changes. Inner sums are always computed anew from the
children, never changed by a difference, so that no rounding builds up, and a sum depends on the leaves alone and not on
how they came.

>>> sampler = Prioritised(exponent=1.0)
>>> sampler.reserve(4)
>>> sampler.insert(np.array([0, 1, 3]), np.array([0.0, 1.0, 3.0]))
>>> slots, probabilities = sampler.choose(1000, np.random.default_rng(0))
>>> dict(zip(slots.tolist(), probabilities.tolist())) == {1: 0.25, 3: 0.75}
True
"""

from typing import Any

import numpy as np

from weft.errors import WeftError
from weft.replay.selectors import Chosen, Selector, Slots
from weft.replay.store import span

FAN = 16
SHIFT = 4
TOP = 4096
"""The most nodes that are searched as one: their cumulative sum costs less than a level of the tree."""
BLOCK = 64
"""Draws that are multiplied at once: as few, BLAS does not start threads, which cost more than they gain."""
MANY = 512
"""Draws from which it pays to put them in order first."""

BEFORE = np.triu(np.ones((FAN, FAN)), 1)


class SumTree:
    """Sums over weights, float64, by slot."""

    def __init__(self, capacity: int, most: int = TOP) -> None:
        """With at most so many nodes at the top."""
        depth, top = 0, capacity
        while top > most:
            depth, top = depth + 1, -(-top // FAN)
        self.levels = [np.zeros(top * FAN**level) for level in range(depth, -1, -1)]
        self._ends: np.ndarray | None = None
        """The sums of the top up to each of its nodes, if they are known."""

    @property
    def weights(self) -> np.ndarray:
        return self.levels[0]

    @property
    def total(self) -> float:
        return float(self._top()[-1])

    def set(self, slots: Slots, weights: np.ndarray | float) -> None:
        """Give slots new weights."""
        if not len(slots):
            return
        self._ends = None
        index = span(slots)
        self.weights[index] = weights
        in_a_row = isinstance(index, slice)
        low, high = (index.start, index.stop - 1) if in_a_row else (int(slots.min()), int(slots.max()))
        for level, (children, sums) in enumerate(zip(self.levels, self.levels[1:], strict=False), 1):
            low, high, nodes = low >> SHIFT, high >> SHIFT, children.reshape(-1, FAN)
            if in_a_row or high - low < 2 * len(slots):
                np.einsum("ij->i", nodes[low : high + 1], out=sums[low : high + 1])
            else:
                changed = slots >> SHIFT * level
                sums[changed] = np.einsum("ij->i", nodes.take(changed, axis=0, mode="clip"))

    def choose(self, n: int, rng: np.random.Generator) -> Chosen | None:
        """n slots in proportion to their weights; None if all weights are zero."""
        total = self.total
        if not 0 < total < np.inf:
            return self._without_proportions(total)
        slots = self._descend(rng.random(n) * total)
        weights = self.weights.take(slots, mode="clip")
        while not weights.all():
            # A draw within a rounding error of a node's end can come out at a leaf without weight.
            again = np.flatnonzero(weights == 0)
            slots[again] = self._descend(rng.random(len(again)) * total)
            weights = self.weights.take(slots)
        weights /= total
        return slots, weights

    def _top(self) -> np.ndarray:
        if self._ends is None:
            with np.errstate(over="ignore"):
                self._ends = self.levels[-1].cumsum()
        return self._ends

    def _descend(self, draws: np.ndarray) -> np.ndarray:
        """The leaf at which each draw, from 0 to the sum of all, comes out."""
        n = len(draws)
        if n > BLOCK:
            draws = np.concatenate([draws, np.zeros(-n % BLOCK)])
        if n < MANY:
            return self._leaves(draws)[:n]
        # In order, draws that come out near each other read the same memory, and the search of the top can guess.
        order = draws.argsort()
        slots = np.empty(len(draws), np.int64)
        slots[order] = self._leaves(draws[order])
        return slots[:n]

    def _leaves(self, draws: np.ndarray) -> np.ndarray:
        """As `_descend`, for less than a block or whole ones."""
        ends = self._top()
        nodes = ends.searchsorted(draws, side="right")
        np.minimum(nodes, len(ends) - 1, out=nodes)
        before = ends.take(nodes) - self.levels[-1].take(nodes)
        firsts = np.arange(-1, len(draws) * FAN - 1, FAN)
        for children in self.levels[-2::-1]:
            draws = np.maximum(draws - before, 0)
            blocks = children.reshape(-1, FAN).take(nodes, axis=0, mode="clip")
            sums = (blocks.reshape(-1, min(len(draws), BLOCK), FAN) @ BEFORE).reshape(-1, FAN)
            halves = np.bitwise_count((sums <= draws[:, None]).view(np.uint64))
            passed = halves[:, 0] + halves[:, 1]
            nodes = nodes * FAN + passed - 1
            if children is not self.weights:
                before = sums.ravel().take(firsts + passed)
        return nodes

    def _without_proportions(self, total: float) -> None:
        if total != 0:
            raise WeftError(
                f"the priorities, raised to the exponent, sum to {total}: expected a finite sum, so lower them"
            )


class Prioritised(Selector):
    """A slot is as likely as its priority raised to `exponent`; if all priorities are zero, all are alike."""

    by_slot = True

    def __init__(self, exponent: float = 0.6) -> None:
        if not 0 <= exponent < np.inf:
            raise WeftError(f"the exponent of priorities is {exponent}: expected a finite number that is not negative")
        self.exponent = exponent

    def reserve(self, capacity: int) -> None:
        super().reserve(capacity)
        self.tree = SumTree(capacity)
        self.there = np.zeros(capacity, bool)

    def insert(self, slots: Slots, priorities: np.ndarray) -> None:
        self.there[span(slots)] = True
        alike = priorities.strides == (0,)  # one number for all: as `repeated` gives it
        self.tree.set(slots, (priorities[:1] if alike else priorities) ** self.exponent)

    def remove(self, slots: Slots) -> None:
        self.there[slots] = False
        self.tree.set(slots, 0.0)

    def choose(self, n: int, rng: np.random.Generator) -> Chosen:
        chosen = self.tree.choose(n, rng)
        if chosen is None:
            slots = np.flatnonzero(self.there)
            return rng.choice(slots, n), np.full(n, 1 / len(slots))
        return chosen

    def state(self) -> dict[str, Any]:
        return {"weights": self.tree.weights[: self.capacity].copy(), "there": self.there.copy()}

    def restore(self, state: dict[str, Any]) -> None:
        self.there = state["there"].copy()
        self.tree.set(np.arange(self.capacity), state["weights"])


def importance_weights(probability: np.ndarray, size: int, exponent: float) -> np.ndarray:
    """What undoes the bias of sampling by priority: (size * p) ** -exponent, divided by the largest of the batch.

    >>> importance_weights(np.array([0.5, 0.25]), size=4, exponent=1.0).tolist()
    [0.5, 1.0]
    """
    weights = (size * np.asarray(probability, np.float64)) ** -exponent
    weights /= weights.max()
    return weights
