"""A sum tree: draws slots in proportion to weights, for whole batches at once.

Every node has sixteen children. A batch descends level by level: one product with a triangular matrix of ones gives the
sums before each child, and counting the sums that a draw has passed gives the child. The top level is searched by its
cumulative sum, which is cached until a weight changes. Inner sums are always recomputed from the children, never
changed by a difference: rounding errors do not accumulate, and a sum depends only on the leaves, not on their history.

>>> tree = SumTree(4)
>>> tree.set(np.array([0, 1, 3]), np.array([0.0, 1.0, 3.0]))
>>> tree.total
4.0
"""

import numpy as np

from weft.errors import WeftError
from weft.replay.selector import Chosen, Slots
from weft.replay.store import as_slice

FAN = 16
SHIFT = 4
TOP = 4096
"""Largest size of the top level: up to here, a cumulative sum costs less than another level."""
BLOCK = 64
"""Draws per matrix product: for so small a product BLAS starts no threads, which would cost more than they gain."""
SORT_FROM = 512
"""Number of draws from which sorting them first pays off."""

BEFORE = np.triu(np.ones((FAN, FAN)), 1)


class SumTree:
    """Weights of slots, float64, and their partial sums."""

    def __init__(self, capacity: int, max_top: int = TOP) -> None:
        """A tree whose top level has at most `max_top` nodes."""
        depth, top = 0, capacity
        while top > max_top:
            depth, top = depth + 1, -(-top // FAN)
        self.levels = [np.zeros(top * FAN**level) for level in range(depth, -1, -1)]
        self._ends: np.ndarray | None = None
        """The cumulative sum of the top level, if it is cached."""

    @property
    def weights(self) -> np.ndarray:
        return self.levels[0]

    @property
    def total(self) -> float:
        return float(self._top()[-1])

    def set(self, slots: Slots, weights: np.ndarray | float) -> None:
        """Set the weights of slots."""
        if not len(slots):
            return
        self._ends = None
        index = as_slice(slots)
        self.weights[index] = weights
        contiguous = isinstance(index, slice)
        low, high = (index.start, index.stop - 1) if contiguous else (int(slots.min()), int(slots.max()))
        for level, (children, sums) in enumerate(zip(self.levels, self.levels[1:], strict=False), 1):
            low, high, nodes = low >> SHIFT, high >> SHIFT, children.reshape(-1, FAN)
            if contiguous or high - low < 2 * len(slots):
                np.einsum("ij->i", nodes[low : high + 1], out=sums[low : high + 1])
            else:
                changed = slots >> SHIFT * level
                sums[changed] = np.einsum("ij->i", nodes.take(changed, axis=0, mode="clip"))

    def choose(self, n: int, rng: np.random.Generator) -> Chosen | None:
        """Draw n slots in proportion to their weights; None if all weights are zero."""
        total = self.total
        if not 0 < total < np.inf:
            return self._check_zero(total)
        slots = self._descend(rng.random(n) * total)
        weights = self.weights.take(slots, mode="clip")
        while not weights.all():
            # A draw within a rounding error of a node's upper end can reach a leaf of weight zero.
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
        """The leaf that each draw reaches; draws are from 0 to the total."""
        n = len(draws)
        if n > BLOCK:
            draws = np.concatenate([draws, np.zeros(-n % BLOCK)])
        if n < SORT_FROM:
            return self._leaves(draws)[:n]
        # Sorted draws read neighbouring memory, and make the search of the top level faster.
        order = draws.argsort()
        slots = np.empty(len(draws), np.int64)
        slots[order] = self._leaves(draws[order])
        return slots[:n]

    def _leaves(self, draws: np.ndarray) -> np.ndarray:
        """As `_descend`, for fewer draws than a block or a multiple of it."""
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

    def _check_zero(self, total: float) -> None:
        if total != 0:
            raise WeftError(
                f"the priorities, raised to the exponent, sum to {total}: expected a finite sum, so lower them"
            )
