"""How well the policy does now: the mean return of the newest hundred or so episodes.

Only sums over an iteration are known, not single episodes. So the mean is over the newest whole iterations that
together hold at least a hundred finished episodes, or over everything while there are fewer.

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
    """An observer that keeps as few sums as give a mean over `at_least` episodes."""

    def __init__(self, at_least: int = 100):
        self.episodes = 0
        self.dropped = 0
        self.evaluated: float | None = None
        self._at_least = at_least
        self._recent: deque[tuple[float, float]] = deque()
        self._held = 0.0

    def __call__(self, update: Update) -> None:
        if METRIC in update.metrics:
            for total, count in zip(*update.metrics[METRIC], strict=True):
                self.add(float(total), float(count))
        for played in update.evaluations:
            self.evaluated = played.return_mean
        if DROPPED in update.metrics:
            self.dropped += round(float(update.metrics[DROPPED][0].sum()))

    def add(self, total: float, count: float) -> None:
        """Count one iteration's episodes: the sum of their returns, and how many they were."""
        if count == 0:
            return
        self.episodes += round(count)
        self._recent.append((total, count))
        self._held += count
        while self._held - self._recent[0][1] >= self._at_least:
            self._held -= self._recent.popleft()[1]

    @property
    def return_mean(self) -> float | None:
        """The recent mean return; None while no episode has finished."""
        if not self._recent:
            return None
        return sum(total for total, _ in self._recent) / self._held
