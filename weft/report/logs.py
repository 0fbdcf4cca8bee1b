"""Writes the metrics of a run to log files, iteration by iteration.

A metric is a (total, count) pair. Its mean is `None` if the count is 0: the return of an iteration in which no episode
ended. A mean that is NaN or infinite is logged as such.

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

from weft.report.system import System, numbers_by_name
from weft.report.update import Update


@dataclass(frozen=True)
class Row:
    """The metrics of one iteration."""

    iteration: int
    steps: int
    means: dict[str, float | None]


def rows(update: Update) -> Iterator[Row]:
    """Yields one row for each iteration of an update."""
    count = max((len(totals) for totals, _ in update.metrics.values()), default=0)
    for index in range(count):
        iteration = update.iteration - count + index + 1
        means = {name: _mean(totals[index], counts[index]) for name, (totals, counts) in update.metrics.items()}
        # Every iteration takes the same number of steps.
        yield Row(iteration, update.steps * iteration // update.iteration, means)


class MetricLog:
    """Writes one JSON line per iteration. JSON has no NaN or infinity, so these are written as "nan" and "inf"."""

    def __init__(self, path: Path):
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115, open until `close`

    def __call__(self, update: Update) -> None:
        for row in rows(update):
            means = {name: _as_json(mean) for name, mean in row.means.items()}
            self._file.write(json.dumps({"iteration": row.iteration, "steps": row.steps, **means}) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class EvalLog:
    """Writes one JSON line per evaluation. The first evaluation creates the file."""

    def __init__(self, path: Path):
        self._path = path

    def __call__(self, update: Update) -> None:
        for evaluation in update.evaluations:
            summary = {"steps": evaluation.steps, "return_mean": evaluation.return_mean}
            episodes = {"returns": evaluation.returns, "lengths": evaluation.lengths}
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(json.dumps(summary | episodes) + "\n")

    def close(self) -> None:
        """Does nothing: the file is open only while a line is written."""


class SystemLog:
    """Writes one JSON line per reading of the run's counters. The first reading creates the file."""

    def __init__(self, path: Path):
        self._path = path

    def __call__(self, update: Update) -> None:
        for total, system in enumerate((update.system, update.total)):
            if system is not None:
                reading = {"steps": update.steps, "seconds": update.seconds, "total": bool(total)}
                with open(self._path, "a", encoding="utf-8") as file:
                    file.write(json.dumps({**reading, "over_s": system.seconds, **numbers_by_name(system)}) + "\n")

    def close(self) -> None:
        """Does nothing: the file is open only while a line is written."""


class EventLog:
    """Writes TensorBoard events, with environment steps as the x-axis."""

    def __init__(self, folder: Path):
        self._writer = SummaryWriter(str(folder))

    def __call__(self, update: Update) -> None:
        for row in rows(update):
            for name, mean in row.means.items():
                if mean is not None:
                    self._writer.add_scalar(name, mean, row.steps)
        for evaluation in update.evaluations:
            self._writer.add_scalar("eval_return", evaluation.return_mean, evaluation.steps)
        if update.system is not None:
            self._add_system(update.system, update.steps)

    def _add_system(self, system: System, steps: int) -> None:
        for name, number in numbers_by_name(system).items():
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
