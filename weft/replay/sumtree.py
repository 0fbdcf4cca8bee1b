"""Sampling in proportion to priorities, with a tree of sums that works on whole batches.

Every node of the tree has sixteen children. A batch goes down all at once: for each draw the sums before each child are
one product with a triangle of ones, and the child is found by counting the sums that the draw is not below. The top is
one cumulative sum. Inner sums are always computed anew from the children, never changed by a difference, so that no
rounding builds up, and a sum depends on the leaves alone and not on how they came.

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

FAN = 16
SHIFT = 4
TOP = 512
"""The most nodes that are searched as one: the cumulative sum of these costs less than a level of the tree."""
BLOCK = 64
"""Draws that are multiplied at once: as few, BLAS does not start threads, which cost more than they gain."""

BEFORE = np.triu(np.ones((FAN, FAN)), 1)


class SumTree:
    """Sums over weights, float64, by slot."""

    def __init__(self, capacity: int) -> None:
        depth, top = 0, capacity
        while top > TOP:
            depth, top = depth + 1, -(-top // FAN)
        self.levels = [np.zeros(top * FAN**level) for level in range(depth, -1, -1)]

    @property
    def weights(self) -> np.ndarray:
        return self.levels[0]

    def set(self, slots: Slots, weights: np.ndarray | float) -> None:
        """Give slots new weights."""
        if not len(slots):
            return
        self.weights[slots] = weights
        low, high = int(slots.min()), int(slots.max())
        for children, sums in zip(self.levels, self.levels[1:], strict=False):
            low, high, slots = low >> SHIFT, high >> SHIFT, slots >> SHIFT
            nodes = children.reshape(-1, FAN)
            if high - low < 2 * len(slots):
                np.einsum("ij->i", nodes[low : high + 1], out=sums[low : high + 1])
            else:
                sums[slots] = np.einsum("ij->i", nodes.take(slots, axis=0, mode="clip"))

    def choose(self, n: int, rng: np.random.Generator) -> Chosen | None:
        """n slots in proportion to their weights; None if all weights are zero."""
        with np.errstate(over="ignore"):
            ends = self.levels[-1].cumsum()
        total = float(ends[-1])
        if not 0 < total < np.inf:
            return self._without_proportions(total)
        draws = rng.random(-(-n // BLOCK) * BLOCK) * total
        # In order, draws that come out near each other read the same memory, and the search of the top can guess.
        order = draws.argsort()
        slots = np.empty(len(draws), np.int64)
        slots[order] = self._descend(draws[order], ends)
        slots = slots[:n]
        weights = self.weights.take(slots, mode="clip")
        while not weights.all():
            # A draw within a rounding error of a node's end can come out at a leaf without weight.
            again = np.flatnonzero(weights == 0)[:BLOCK]
            slots[again] = self._descend(rng.random(BLOCK) * total, ends)[: len(again)]
            weights = self.weights.take(slots)
        weights /= total
        return slots, weights

    def _descend(self, draws: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """The leaf at which each draw, from 0 to the sum of all, comes out; draws are whole blocks."""
        nodes = ends.searchsorted(draws, side="right")
        np.minimum(nodes, len(ends) - 1, out=nodes)
        draws -= (ends - self.levels[-1]).take(nodes)
        np.maximum(draws, 0, out=draws)
        firsts = np.arange(-1, len(draws) * FAN - 1, FAN)
        for children in self.levels[-2::-1]:
            blocks = children.reshape(-1, FAN).take(nodes, axis=0, mode="clip").reshape(-1, BLOCK, FAN)
            before = (blocks @ BEFORE).reshape(-1, FAN)
            halves = np.bitwise_count((before <= draws[:, None]).view(np.uint64))
            count = halves[:, 0] + halves[:, 1]
            draws -= before.ravel().take(firsts + count, mode="clip")
            nodes *= FAN
            nodes += count
            nodes -= 1
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
        self.there[slots] = True
        self.tree.set(slots, priorities**self.exponent)

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
        return {"weights": self.tree.weights.copy(), "there": self.there.copy()}

    def restore(self, state: dict[str, Any]) -> None:
        self.there = state["there"].copy()
        self.tree.set(np.arange(len(state["weights"])), state["weights"])


def importance_weights(probability: np.ndarray, size: int, exponent: float) -> np.ndarray:
    """What undoes the bias of sampling by priority: (size * p) ** -exponent, divided by the largest of the batch.

    >>> importance_weights(np.array([0.5, 0.25]), size=4, exponent=1.0).tolist()
    [0.5, 1.0]
    """
    weights = (size * np.asarray(probability, np.float64)) ** -exponent
    return weights / weights.max()
