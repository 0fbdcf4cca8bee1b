"""Statistics of a pool's episodes: sums that cost one addition a step, and a few more where an episode ends.

>>> tally = Tally(2)
>>> for _ in range(3):
...     tally.add(np.array([1.0, 0.5]))
>>> tally.finish(0)
>>> totals = tally.take()
>>> totals.returns.tolist(), totals.lengths.tolist(), totals.finished.tolist()
([3.0, 0.0], [3.0, 0.0], [1.0, 0.0])
"""

import numpy as np

from weft.envs.pools.pool import Totals


class Tally:
    """By environment: the episode under way, and the sums over those finished since they were last taken."""

    def __init__(self, num_envs: int) -> None:
        self._running = np.zeros(num_envs)
        # An episode's length is the number of steps since its start, so that no step has to count anything for it.
        self._start = [0] * num_envs
        self._steps = 0
        self._clear()

    def add(self, reward: np.ndarray) -> None:
        """Count one step of every environment, float64 [B]; zero where the step was none of an episode."""
        self._steps += 1
        self._running += reward

    def finish(self, row: int) -> None:
        """The row's episode ended with the step just added."""
        self._returns[row] += self._running[row]
        self._lengths[row] += self._steps - self._start[row]
        self._finished[row] += 1
        self.begin(row)

    def drop(self, row: int) -> None:
        """The row's episode was given up: it is counted as that, and nothing of it remains."""
        self._dropped[row] += 1
        self.begin(row)

    def begin(self, row: int) -> None:
        """The row's next episode begins with the next step."""
        self._running[row] = 0.0
        self._start[row] = self._steps

    def length(self, row: int) -> int:
        """How many steps the row's episode has had so far."""
        return self._steps - self._start[row]

    def take(self) -> Totals:
        """The sums so far, which then start again from nothing."""
        totals = Totals(
            *(sums.astype(np.float32) for sums in (self._returns, self._lengths, self._finished, self._dropped))
        )
        self._clear()
        return totals

    def _clear(self) -> None:
        self._returns, self._lengths, self._finished, self._dropped = np.zeros((4, len(self._start)))
