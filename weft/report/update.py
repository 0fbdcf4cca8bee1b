"""What a run tells its observers as it goes: one `Update` for every few iterations."""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from weft.report.system import System


@dataclass(frozen=True)
class Evaluation:
    """Episodes that were played with what had been learned after so many `steps`."""

    steps: int
    returns: tuple[float, ...]
    lengths: tuple[float, ...]

    @property
    def return_mean(self) -> float:
        return statistics.fmean(self.returns)

    @property
    def return_std(self) -> float:
        return statistics.pstdev(self.returns)

    @property
    def length_mean(self) -> float:
        return statistics.fmean(self.lengths)


@dataclass(frozen=True)
class Update:
    """The iterations since the last update: how far the run is, and what was measured in each of them."""

    iteration: int
    """Iterations done so far."""
    iterations: int
    """Iterations in all."""
    steps: int
    """Environment steps done so far, over all environments."""
    seconds: float
    """Since training began, compilation excluded."""
    metrics: Mapping[str, tuple[np.ndarray, np.ndarray]]
    """By name: the totals and the counts, one row for each iteration since the last update."""
    evaluations: tuple[Evaluation, ...] = ()
    """Those that have come back since the last update."""
    system: System | None = None
    """Where the time went since the last reading: about once a second where there are several roles or replicas."""
    total: System | None = None
    """The same over the whole run, at its end."""


class Observer(Protocol):
    """Follows a run: called with every update."""

    def __call__(self, update: Update) -> None: ...


class StateObserver(Protocol):
    """Receives the state every `state_every` environment steps and at the end of the run.

    It comes after the iteration in which the next multiple of `state_every` is reached, before the update for that
    iteration. Asynchronous workers have no iteration in common: with them it comes a few iterations later.
    """

    state_every: int

    def receive_state(self, steps: int, state: Any) -> None: ...
