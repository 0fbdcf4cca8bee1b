"""Assembles per-iteration metrics of the whole loop from the replicas' reports.

In a synchronous run, the metrics of iteration `n` come from the reports of all replicas on their iteration `n`. Lanes
have no common iteration number: there, the metrics of an iteration come from the next reports of each role, in order of
arrival, as many as make up one iteration of the whole loop.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from weft.layout.layout import Role
from weft.metrics import Mean
from weft.project.project import Projection
from weft.runtime.channel import RunControl, Stopwatch
from weft.runtime.interpreter import sum_of
from weft.runtime.scatter import LeafValues

# How many iterations a replica's reports may be ahead of the last complete one. In a synchronous run this bounds
# replicas that no message holds back. Lanes never get that far ahead of the consumer, so they never wait for it.
MAX_ITERATIONS_AHEAD = 4


@dataclass
class MetricsAssembler:
    """Collects the replicas' reports, and hands out the metrics of one iteration after the other."""

    control: RunControl
    projection: Projection
    pending: dict[int, "IterationReports"] = field(default_factory=dict)
    """The reports on iterations that have not been handed out, by iteration, from 1."""
    done: int = 0
    """The number of iterations handed out."""

    def __post_init__(self) -> None:
        layout, leaf_count = self.projection.layout, self.projection.trace.state_tree.num_leaves
        self.expected = {role.name: reports_per_iteration(role) for role in layout.roles}
        self.received = dict.fromkeys(self.expected, 0)
        homes = self.projection.homes
        self.metric_outputs = {
            name: [index for index in range(leaf_count, len(homes)) if homes[index] == name] for name in self.expected
        }
        self.expected_total = sum(self.expected.values())
        # `wait_for_next` is woken only for complete iterations: waking it costs more than a report.
        self.condition = self.control.condition()
        self.complete = self.control.condition(same_lock_as=self.condition)

    def report(
        self, role: Role, replica: int, number: int, outputs: LeafValues, stopwatch: Stopwatch, lags: Sequence[int] = ()
    ) -> None:
        """Adds a replica's outputs of its iteration `number`, from 1, and the lags of the lanes that it consumed.

        Blocks while the replica is too far ahead of the others.
        """
        with self.condition:
            iteration = self.iteration_of(role, number)
            self.control.wait_until(
                self.condition,
                lambda: iteration <= self.done + MAX_ITERATIONS_AHEAD,
                stopwatch,
                "the reports of other replicas",
            )
            metrics = {index: outputs[index] for index in self.metric_outputs[role.name]}
            reports = self.pending.setdefault(iteration, IterationReports())
            reports.add(role, replica, metrics, lags)
            if reports.count == self.expected_total:
                self.complete.notify_all()

    def iteration_of(self, role: Role, number: int) -> int:
        """Returns the iteration of the whole loop that a report belongs to."""
        if not self.projection.layout.lanes:
            return number
        self.received[role.name] += 1
        return (self.received[role.name] - 1) // self.expected[role.name] + 1

    def wait_for_next(self, on_idle: Callable[[], None]) -> Any:
        """Waits for the metrics of the next iteration. Calls `on_idle` about every 0.1 s while waiting."""
        while (reports := self.pop_next()) is None:
            on_idle()
        leaf_count, tree = self.projection.trace.state_tree.num_leaves, self.projection.trace.metric_tree
        totals = reports.totals({role.name: role for role in self.projection.layout.roles})
        metrics = jax.tree.unflatten(tree, [totals[leaf_count + index] for index in range(tree.num_leaves)])
        return reports.lag_metrics() | metrics if reports.lags else metrics

    def pop_next(self) -> "IterationReports | None":
        """Removes and returns the next iteration's reports, or None if they are not complete within 0.1 s."""
        with self.condition:
            if not self.is_complete(self.done + 1):
                self.complete.wait(0.1)
            if not self.is_complete(self.done + 1):
                return None
            self.done += 1
            self.condition.notify_all()
            return self.pending.pop(self.done)

    def is_complete(self, iteration: int) -> bool:
        return iteration in self.pending and self.pending[iteration].count == self.expected_total


@dataclass
class IterationReports:
    """The reports on one iteration. Metrics are totals and counts, so assembling them is addition."""

    metrics: dict[str, list[tuple[int, LeafValues]]] = field(default_factory=dict)
    """By role, pairs of a replica and its metrics."""
    lags: list[int] = field(default_factory=list)
    """The lag of each consumed lane."""

    @property
    def count(self) -> int:
        return sum(map(len, self.metrics.values()))

    def add(self, role: Role, replica: int, metrics: LeafValues, lags: Sequence[int] = ()) -> None:
        self.lags += lags
        self.metrics.setdefault(role.name, []).append((replica, metrics))

    def totals(self, roles: Mapping[str, Role]) -> dict[int, np.ndarray]:
        """Adds the metrics in the order of replicas, so that the order of arrival does not change the bits."""
        return {
            index: total
            for name, reports in self.metrics.items()
            for index, total in _role_totals(
                roles[name], [metrics for _, metrics in sorted(reports, key=lambda report: report[0])]
            ).items()
        }

    def lag_metrics(self) -> dict[str, Mean]:
        """Returns the mean and the maximum lag as metrics."""
        pairs = {"lag": (sum(self.lags), len(self.lags)), "lag_max": (max(self.lags), 1)}
        return {name: Mean(*np.array(pair, np.float32)[:, None]) for name, pair in pairs.items()}


def reports_per_iteration(role: Role) -> int:
    """Returns the number of iterations of a role's replicas that make up one iteration of the whole loop."""
    return role.replicas if role.take is None else role.replicas * role.lanes_per_replica // role.take


def _role_totals(role: Role, reports: list[LeafValues]) -> dict[int, np.ndarray]:
    """Adds the metrics of a role's reports."""
    columns = {index: [report[index] for report in reports] for index in reports[0]}
    if role.devices > 1 or role.on:
        arrays = {
            index: np.concatenate([_by_device(value, role) for value in column]) for index, column in columns.items()
        }
        return {index: np.sum(array, axis=0) for index, array in arrays.items()}
    # One call and one transfer for all metrics of a kind: there may be thousands of reports per second.
    indices_by_kind: dict[Any, list[int]] = {}
    for index, column in columns.items():
        indices_by_kind.setdefault((column[0].shape, column[0].dtype), []).append(index)
    return {
        index: total
        for indices in indices_by_kind.values()
        for index, total in zip(indices, np.asarray(_sums([columns[index] for index in indices])), strict=True)
    }


def _by_device(value: Any, role: Role) -> np.ndarray:
    return np.asarray(value) if role.devices > 1 else np.asarray(value)[None]


@jax.jit
def _sums(columns: list[list[Any]]) -> Any:
    return jnp.stack([sum_of(values) for values in columns])
