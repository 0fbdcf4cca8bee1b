"""What was measured, kept: one line or one set of events for each iteration.

A metric is a (total, count) pair, so its mean may not exist: an iteration in which no episode ended has no return. Such
a mean is `None`; one that is not a number is kept as it is, for it must not pass unseen.

>>> update = Update(2, 4, 64, 0.5, {"loss": (np.array([3.0, 0.0]), np.array([2.0, 0.0]))})
>>> [(row.iteration, row.steps, row.means) for row in rows(update)]
[(1, 32, {'loss': 1.5}), (2, 64, {'loss': None})]
"""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tensorboardX import SummaryWriter

from weft.report.system import System, flat
from weft.report.update import Update


@dataclass(frozen=True)
class Row:
    """One iteration's measurements."""

    iteration: int
    steps: int
    means: dict[str, float | None]


def rows(update: Update) -> Iterator[Row]:
    """An update's iterations one by one."""
    count = max((len(totals) for totals, _ in update.metrics.values()), default=0)
    for row in range(count):
        iteration = update.iteration - count + row + 1
        means = {name: _mean(totals[row], counts[row]) for name, (totals, counts) in update.metrics.items()}
        # Every iteration takes equally many steps, so those up to this one are a share of those so far.
        yield Row(iteration, update.steps * iteration // update.iteration, means)


class MetricLog:
    """Writes JSON lines. A mean that is not finite is written as a string ("nan", "inf"): JSON has no number for it."""

    def __init__(self, path: Path):
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115, kept open until `close`

    def __call__(self, update: Update) -> None:
        for row in rows(update):
            means = {name: _as_json(mean) for name, mean in row.means.items()}
            self._file.write(json.dumps({"iteration": row.iteration, "steps": row.steps, **means}) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class EvalLog:
    """Writes a JSON line for each evaluation; there is no file before the first."""

    def __init__(self, path: Path):
        self._path = path

    def __call__(self, update: Update) -> None:
        for played in update.evaluations:
            line = {"steps": played.steps, "return_mean": played.return_mean}
            lists = {"returns": played.returns, "lengths": played.lengths}
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(json.dumps(line | lists) + "\n")

    def close(self) -> None:
        """Nothing is kept open."""


class SystemLog:
    """Writes a JSON line for each reading of where the time goes; there is no file before the first."""

    def __init__(self, path: Path):
        self._path = path

    def __call__(self, update: Update) -> None:
        for total, system in enumerate((update.system, update.total)):
            if system is not None:
                when = {"steps": update.steps, "seconds": update.seconds, "total": bool(total)}
                with open(self._path, "a", encoding="utf-8") as file:
                    file.write(json.dumps({**when, "over_s": system.seconds, **flat(system)}) + "\n")

    def close(self) -> None:
        """Nothing is kept open."""


class EventLog:
    """Writes TensorBoard events, against environment steps."""

    def __init__(self, folder: Path):
        self._writer = SummaryWriter(str(folder))

    def __call__(self, update: Update) -> None:
        for row in rows(update):
            for name, mean in row.means.items():
                if mean is not None:
                    self._writer.add_scalar(name, mean, row.steps)
        for played in update.evaluations:
            self._writer.add_scalar("eval_return", played.return_mean, played.steps)
        if update.system is not None:
            self._add_system(update.system, update.steps)

    def _add_system(self, system: System, steps: int) -> None:
        for name, number in flat(system).items():
            if not isinstance(number, dict):
                self._writer.add_scalar(f"system/{name}", number, steps)
        if system.lag is not None:
            counts = system.lag.counts
            self._writer.add_histogram("system/lag", np.repeat(list(counts), list(counts.values())), steps)

    def close(self) -> None:
        self._writer.close()


def _mean(total: np.ndarray, count: np.ndarray) -> float | None:
    return float(total) / float(count) if count else None


def _as_json(mean: float | None) -> float | str | None:
    return mean if mean is None or math.isfinite(mean) else str(mean)
