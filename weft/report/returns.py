"""The current performance of the policy: the mean return of about the last hundred episodes.

An update holds the sum of returns of an iteration, not single returns. So the mean is over the newest iterations that
together have at least a hundred finished episodes, or over all iterations while there are fewer.

>>> returns = Returns(at_least=2)
>>> for total, count in [(10.0, 1.0), (0.0, 0.0), (50.0, 1.0), (70.0, 1.0)]:
...     returns.add(total, count)
>>> returns.return_mean, returns.episodes
(60.0, 3)
"""

from collections import deque

from weft.report.update import Update

METRIC = "episode_return"
DROPPED = "episodes_dropped"


class Returns:
    """An observer that tracks the mean return of at least the last `at_least` episodes."""

    def __init__(self, at_least: int = 100):
        self.episodes = 0
        self.dropped = 0
        self.evaluated: float | None = None
        """The mean return of the newest evaluation."""
        self._at_least = at_least
        self._recent: deque[tuple[float, float]] = deque()
        self._recent_episodes = 0.0

    def __call__(self, update: Update) -> None:
        if METRIC in update.metrics:
            for total, count in zip(*update.metrics[METRIC], strict=True):
                self.add(float(total), float(count))
        for evaluation in update.evaluations:
            self.evaluated = evaluation.return_mean
        if DROPPED in update.metrics:
            self.dropped += round(float(update.metrics[DROPPED][0].sum()))

    def add(self, total: float, count: float) -> None:
        """Add one iteration: the sum of the returns of its episodes, and their count."""
        if count == 0:
            return
        self.episodes += round(count)
        self._recent.append((total, count))
        self._recent_episodes += count
        while self._recent_episodes - self._recent[0][1] >= self._at_least:
            self._recent_episodes -= self._recent.popleft()[1]

    @property
    def return_mean(self) -> float | None:
        """The recent mean return, or None while no episode has finished."""
        if not self._recent:
            return None
        return sum(total for total, _ in self._recent) / self._recent_episodes
