"""What the strands of a run report, put together into rows: one for each iteration of the whole loop.

In step, row number `n` is what all strands measured in their iteration `n`. Lanes have no common number: there a row is
as many reports of a role as make one iteration of the whole loop, in the order in which they came.
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

# Rows that a strand may be ahead of the one that is still open. In step it is what bounds those that nothing else does;
# lanes are never so far ahead of who takes from them, so that it does not hold them up.
MAX_ITERATIONS_AHEAD = 4


@dataclass
class MetricsAssembler:
    """Open rows, by number."""

    wait: RunControl
    projection: Projection
    rows: dict[int, "IterationReports"] = field(default_factory=dict)
    done: int = 0
    """Rows that were complete."""

    def __post_init__(self) -> None:
        layout, states = self.projection.layout, self.projection.trace.state_tree.num_leaves
        self.expected = {role.name: reports_per_iteration(role) for role in layout.roles}
        self.came = dict.fromkeys(self.expected, 0)
        homes = self.projection.homes
        self.metrics = {
            name: [index for index in range(states, len(homes)) if homes[index] == name] for name in self.expected
        }
        self.whole = sum(self.expected.values())
        # Whoever follows waits for whole rows: to wake it for every report would cost more than the report.
        self.condition = self.wait.condition()
        self.complete = self.wait.condition(beside=self.condition)

    def report(
        self, role: Role, replica: int, number: int, outputs: dict[int, Any], clock: Stopwatch, lags: Sequence[int] = ()
    ) -> None:
        """What a replica of a role measured in its iteration `number`, from 1; how late the work was that it took."""
        with self.condition:
            row = self.place(role, number)
            self.wait.until(
                self.condition, lambda: row <= self.done + MAX_ITERATIONS_AHEAD, clock, "the reports of others"
            )
            measured = {index: outputs[index] for index in self.metrics[role.name]}
            open_row = self.rows.setdefault(row, IterationReports())
            open_row.add(role, replica, measured, lags)
            if open_row.came == self.whole:
                self.complete.notify_all()

    def place(self, role: Role, number: int) -> int:
        """The number of the row that a report belongs to."""
        if not self.projection.layout.lanes:
            return number
        self.came[role.name] += 1
        return (self.came[role.name] - 1) // self.expected[role.name] + 1

    def next(self, pause: Callable[[], None]) -> Any:
        """The metrics of the next row, as soon as it is complete; `pause` is called now and then while waiting."""
        while (row := self.take()) is None:
            pause()
        states, tree = self.projection.trace.state_tree.num_leaves, self.projection.trace.metric_tree
        totals = row.totals({role.name: role for role in self.projection.layout.roles})
        metrics = jax.tree.unflatten(tree, [totals[states + index] for index in range(tree.num_leaves)])
        return row.lateness() | metrics if row.lags else metrics

    def take(self) -> "IterationReports | None":
        """The next row, if it is complete within a moment."""
        with self.condition:
            if not self.is_complete(self.done + 1):
                self.complete.wait(0.1)
            if not self.is_complete(self.done + 1):
                return None
            self.done += 1
            self.condition.notify_all()
            return self.rows.pop(self.done)

    def is_complete(self, number: int) -> bool:
        return number in self.rows and self.rows[number].came == self.whole


@dataclass
class IterationReports:
    """Reports: metrics are totals and counts, so that putting them together is addition."""

    reports: dict[str, list[tuple[int, dict[int, Any]]]] = field(default_factory=dict)
    """By role, what each replica measured."""
    lags: list[int] = field(default_factory=list)
    """Of the work that was taken."""

    @property
    def came(self) -> int:
        return sum(map(len, self.reports.values()))

    def add(self, role: Role, replica: int, measured: dict[int, Any], lags: Sequence[int] = ()) -> None:
        self.lags += lags
        self.reports.setdefault(role.name, []).append((replica, measured))

    def totals(self, roles: Mapping[str, Role]) -> dict[int, np.ndarray]:
        """The sums in the order of replicas, whoever came first: the same bits every time."""
        return {
            index: total
            for name, reports in self.reports.items()
            for index, total in _added(roles[name], [part for _, part in sorted(reports, key=lambda it: it[0])]).items()
        }

    def lateness(self) -> dict[str, Mean]:
        """The lag of the row's work as metrics, in its mean and at most."""
        pairs = {"lag": (sum(self.lags), len(self.lags)), "lag_max": (max(self.lags), 1)}
        return {name: Mean(*np.array(pair, np.float32)[:, None]) for name, pair in pairs.items()}


def _added(role: Role, reports: list[dict[int, Any]]) -> dict[int, np.ndarray]:
    """The sum of what the replicas of a role measured."""
    columns = {index: [report[index] for report in reports] for index in reports[0]}
    if role.devices > 1 or role.on:
        arrays = {index: np.concatenate([_by_device(part, role) for part in parts]) for index, parts in columns.items()}
        return {index: np.sum(array, axis=0) for index, array in arrays.items()}
    # One call and one transfer for all: a metric is a few numbers, and there may be thousands of reports a second.
    kinds: dict[Any, list[int]] = {}
    for index, parts in columns.items():
        kinds.setdefault((parts[0].shape, parts[0].dtype), []).append(index)
    return {
        index: total
        for same in kinds.values()
        for index, total in zip(same, np.asarray(_sums([columns[index] for index in same])), strict=True)
    }


def _by_device(part: Any, role: Role) -> np.ndarray:
    return np.asarray(part) if role.devices > 1 else np.asarray(part)[None]


@jax.jit
def _sums(columns: list[list[Any]]) -> Any:
    return jnp.stack([sum_of(parts) for parts in columns])


def reports_per_iteration(role: Role) -> int:
    """How many iterations of its replicas together make one of the whole loop."""
    return role.replicas if role.take is None else role.replicas * role.lanes_per_replica // role.take
