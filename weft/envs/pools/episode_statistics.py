"""Episode statistics of a pool, at the cost of one array addition per step.

>>> statistics = PoolEpisodeStatistics(2)
>>> for _ in range(3):
...     statistics.add_step(np.array([1.0, 0.5]))
>>> statistics.finish_episode(0)
>>> totals = statistics.pop_totals()
>>> totals.returns.tolist(), totals.lengths.tolist(), totals.finished.tolist()
([3.0, 0.0], [3.0, 0.0], [1.0, 0.0])
"""

import numpy as np

from weft.envs.pools.pool import EpisodeTotals


class PoolEpisodeStatistics:
    """The current episode of every row, and totals over the episodes finished since the last `pop_totals`."""

    def __init__(self, num_envs: int) -> None:
        self._running_return = np.zeros(num_envs)
        # The length of an episode is the number of steps since its first one, so a step does not update any length.
        self._first_step = [0] * num_envs
        self._steps = 0
        self._clear()

    def add_step(self, reward: np.ndarray) -> None:
        """Counts one step of every row. Rewards are float64 [B], zero in rows that belong to no episode."""
        self._steps += 1
        self._running_return += reward

    def finish_episode(self, row: int) -> None:
        """Counts the row's episode as finished by the step just added."""
        self._returns[row] += self._running_return[row]
        self._lengths[row] += self._steps - self._first_step[row]
        self._finished[row] += 1
        self.begin_episode(row)

    def drop_episode(self, row: int) -> None:
        """Discards the row's episode and counts it as dropped."""
        self._dropped[row] += 1
        self.begin_episode(row)

    def begin_episode(self, row: int) -> None:
        """Lets the row's episode begin with the next step."""
        self._running_return[row] = 0.0
        self._first_step[row] = self._steps

    def episode_length(self, row: int) -> int:
        """Returns the number of steps in the row's current episode."""
        return self._steps - self._first_step[row]

    def pop_totals(self) -> EpisodeTotals:
        """Returns the totals and resets them to zero."""
        totals = EpisodeTotals(
            *(total.astype(np.float32) for total in (self._returns, self._lengths, self._finished, self._dropped))
        )
        self._clear()
        return totals

    def _clear(self) -> None:
        self._returns, self._lengths, self._finished, self._dropped = np.zeros((4, len(self._first_step)))
