"""Progress displays: a live line on a terminal, and an occasional plain line elsewhere.

Both write to standard error, so that standard output holds only results.

>>> import numpy as np
>>> update = Update(50, 200, 102_400, 2.0, {"episode_return": (np.array([900.0]), np.array([4.0]))})
>>> returns = Returns()
>>> returns(update)
>>> status(update, returns, None)
'102,400 steps  51.2 k steps/s  return 225.0  4 episodes  0:00:06 left'
"""

import sys
import time
from datetime import timedelta
from typing import Protocol, Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TextColumn
from rich.progress import Progress as Bar
from rich.table import Column

from weft.report.returns import Returns
from weft.report.system import System
from weft.report.update import Update

# The smallest terminal width with a progress bar.
MIN_WIDTH_FOR_BAR = 120


class Progress(Protocol):
    """An observer that displays the run while its context is entered."""

    def __enter__(self) -> Self: ...
    def __call__(self, update: Update) -> None: ...
    def __exit__(self, *error: object) -> None: ...


def progress(title: str, *, stream: TextIO | None = None) -> Progress:
    """Returns the display for `stream` (default: standard error)."""
    target = stream or sys.stderr
    return LiveProgress(title, target) if target.isatty() else PlainProgress(title, target)


class LiveProgress:
    """A live line with a progress bar. It shows "compiling" until the first update."""

    def __init__(self, title: str, stream: TextIO):
        console = Console(file=stream)
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            *([BarColumn(24)] if console.width >= MIN_WIDTH_FOR_BAR else []),
            TextColumn("{task.fields[status]}", table_column=Column(overflow="fold")),
        )
        self._bar = Bar(*columns, console=console, refresh_per_second=4)
        self._task = self._bar.add_task(title, total=None, status="compiling")
        self._started = False
        self._returns = Returns()
        self._system: System | None = None

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __call__(self, update: Update) -> None:
        self._started = True
        self._returns(update)
        self._system = update.total or update.system or self._system
        text = status(update, self._returns, self._system)
        self._bar.update(self._task, total=update.iterations, completed=update.iteration, status=text)

    def __exit__(self, *error: object) -> None:
        # If the run was rejected before it started, only its error remains on the screen.
        self._bar.update(self._task, visible=self._started)
        self._bar.stop()


class PlainProgress:
    """Plain lines: the first update, one every few seconds, and the last."""

    def __init__(self, title: str, stream: TextIO, every: float = 5.0):
        self._title, self._stream, self._every = title, stream, every
        self._returns = Returns()
        self._system: System | None = None
        self._next = 0.0

    def __enter__(self) -> Self:
        return self

    def __call__(self, update: Update) -> None:
        self._returns(update)
        self._system = update.total or update.system or self._system
        if time.monotonic() >= self._next or update.iteration == update.iterations:
            self._next = time.monotonic() + self._every
            print(f"{self._title}  {status(update, self._returns, self._system)}", file=self._stream, flush=True)

    def __exit__(self, *error: object) -> None:
        pass


def status(update: Update, returns: Returns, system: System | None) -> str:
    """Returns the state of the run in one line; `system` is the last reading of its counters."""
    parts = [f"{update.steps:,} steps", f"{rate(update.steps / max(update.seconds, 1e-9))} steps/s"]
    if returns.return_mean is not None:
        parts += [f"return {returns.return_mean:.1f}", f"{returns.episodes:,} episodes"]
    if returns.evaluated is not None:
        parts += [f"evaluated {returns.evaluated:.1f}"]
    if system is not None and system.lag is not None:
        parts += [f"lag {system.lag.mean:.1f} (max {system.lag.max})"]
    if system is not None and system.bottleneck is not None:
        parts += [f"bottleneck {system.bottleneck.role} {100 * system.bottleneck.computing:.0f} %"]
    seconds_left = update.seconds * (update.iterations - update.iteration) / update.iteration
    return "  ".join([*parts, f"{timedelta(seconds=round(seconds_left))} left"])


def rate(per_second: float) -> str:
    """Returns a rate with three significant digits.

    >>> rate(12.3), rate(51_200), rate(25_600_000)
    ('12.3', '51.2 k', '25.6 M')
    """
    for size, unit in ((1e6, " M"), (1e3, " k")):
        if per_second >= size:
            return f"{per_second / size:.3g}{unit}"
    return f"{per_second:.3g}"
