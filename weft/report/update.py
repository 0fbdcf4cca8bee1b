"""The observer interface of a run: an `Update` after every few iterations, and the state on request."""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from weft.report.system import System


@dataclass(frozen=True)
class Evaluation:
    """The episodes of one evaluation."""

    steps: int
    """The environment steps that the policy was trained for."""
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
    """The progress of the run, and the metrics of the iterations since the last update."""

    iteration: int
    """Finished iterations."""
    iterations: int
    """Iterations of the whole run."""
    steps: int
    """Environment steps so far, over all environments."""
    seconds: float
    """Seconds since training started, without compilation."""
    metrics: Mapping[str, tuple[np.ndarray, np.ndarray]]
    """By name: totals and counts, one row for each iteration since the last update."""
    evaluations: tuple[Evaluation, ...] = ()
    """Evaluations that finished since the last update."""
    system: System | None = None
    """A reading of the run's counters, about once per second if there are several roles or replicas."""
    total: System | None = None
    """The reading over the whole run, in the last update."""


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
