"""What the strands of a run report, put together into rows: one for each iteration of the whole loop.

In step, row number `n` is what all strands measured in their iteration `n`. Lanes have no common number: there a row is
as many reports of a role as make one iteration of the whole loop, in the order in which they came.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from weft.layout.layout import Role
from weft.metrics import Mean
from weft.project.project import Projection
from weft.runtime.channel import Clock, Wait

# Rows that a strand may be ahead of the one that is still open. In step it is what bounds those that nothing else does;
# lanes are never so far ahead of who takes from them, so that it does not hold them up.
AHEAD = 4


@dataclass
class Ledger:
    """Open rows, by number."""

    wait: Wait
    projection: Projection
    rows: dict[int, "Row"] = field(default_factory=dict)
    done: int = 0
    """Rows that were complete."""

    def __post_init__(self) -> None:
        layout, states = self.projection.layout, self.projection.whole.state_tree.num_leaves
        self.expected = {role.name: reports_per_row(role) for role in layout.roles}
        self.came = dict.fromkeys(self.expected, 0)
        homes = self.projection.homes
        self.metrics = {
            name: [index for index in range(states, len(homes)) if homes[index] == name] for name in self.expected
        }
        self.inbox: deque[tuple[int, Role, int, dict[int, Any], Sequence[int]]] = deque()
        self.condition = self.wait.condition()

    def report(
        self, role: Role, replica: int, number: int, outputs: dict[int, Any], clock: Clock, lags: Sequence[int] = ()
    ) -> None:
        """What a replica of a role measured in its iteration `number`, from 1; how late the work was that it took."""
        with self.condition:
            row = self.place(role, number)
            self.wait.until(self.condition, lambda: row <= self.done + AHEAD, clock, "the reports of others")
            measured = {index: outputs[index] for index in self.metrics[role.name]}
            self.inbox.append((row, role, replica, measured, lags))
            self.condition.notify_all()

    def place(self, role: Role, number: int) -> int:
        """The number of the row that a report belongs to."""
        if not self.projection.layout.lanes:
            return number
        self.came[role.name] += 1
        return (self.came[role.name] - 1) // self.expected[role.name] + 1

    def next(self, pause: Callable[[], None]) -> Any:
        """The metrics of the next row, as soon as it is complete; `pause` is called now and then while waiting."""
        number = self.done + 1
        while not self.complete(number):
            self.absorb(pause)
        row = self.rows.pop(number)
        with self.condition:
            self.done = number
            self.condition.notify_all()
        states, tree = self.projection.whole.state_tree.num_leaves, self.projection.whole.metric_tree
        metrics = jax.tree.unflatten(tree, [row.total(states + index) for index in range(tree.num_leaves)])
        return row.lateness() | metrics if self.projection.layout.lanes else metrics

    def complete(self, number: int) -> bool:
        row = self.rows.get(number)
        return row is not None and all(row.came.get(role, 0) == count for role, count in self.expected.items())

    def absorb(self, pause: Callable[[], None]) -> None:
        """Add what has come to its rows."""
        with self.condition:
            if not self.inbox:
                self.condition.wait(0.1)
            reports = list(self.inbox)
            self.inbox.clear()
        if not reports:
            pause()
        for row, role, replica, measured, lags in reports:
            self.rows.setdefault(row, Row()).add(role, replica, jax.device_get(measured), lags)


@dataclass
class Row:
    """Reports: metrics are totals and counts, so that putting them together is addition."""

    parts: dict[int, list[tuple[int, np.ndarray]]] = field(default_factory=dict)
    """By output, what each replica measured."""
    came: dict[str, int] = field(default_factory=dict)
    lags: list[int] = field(default_factory=list)
    """Of the work that was taken."""

    def add(self, role: Role, replica: int, measured: dict[int, np.ndarray], lags: Sequence[int] = ()) -> None:
        self.lags += lags
        self.came[role.name] = self.came.get(role.name, 0) + 1
        for index, array in measured.items():
            array = np.sum(array, axis=0) if role.devices > 1 else array
            self.parts.setdefault(index, []).append((replica, array))

    def lateness(self) -> dict[str, Mean]:
        """The lag of the row's work as metrics, in its mean and at most."""
        pairs = {"lag": (sum(self.lags), len(self.lags)), "lag_max": (max(self.lags), 1)}
        return {name: Mean(*np.array(pair, np.float32)[:, None]) for name, pair in pairs.items()}

    def total(self, index: int) -> np.ndarray:
        """The sum in the order of replicas, whoever came first: the same bits every time."""
        return np.sum([array for _, array in sorted(self.parts[index], key=lambda part: part[0])], axis=0)


def reports_per_row(role: Role) -> int:
    """How many iterations of its replicas together make one of the whole loop."""
    return role.replicas if role.take is None else role.replicas * role.of // role.take
