"""Reports come together into rows: by number in step, by their order in lanes."""

from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from weft.layout.layout import Layout, Role
from weft.runtime.channel import RunControl, Stopwatch, Stuck
from weft.runtime.metrics_assembler import MAX_ITERATIONS_AHEAD, MetricsAssembler, reports_per_iteration


def ledger_of(layout: Layout) -> MetricsAssembler:
    """A ledger for roles that have one metric each, after a state of two leaves."""
    names = sorted(role.name for role in layout.roles)
    metrics = jax.tree.structure({name: 0 for name in names})
    whole = SimpleNamespace(state_tree=jax.tree.structure([0, 0]), metric_tree=metrics)
    projection: Any = SimpleNamespace(layout=layout, trace=whole, homes=(names[0], names[0], *names))
    return MetricsAssembler(RunControl(0.01), projection)


def report(
    ledger: MetricsAssembler, name: str, replica: int, number: int, value: Any, lags: tuple[int, ...] = ()
) -> None:
    role = ledger.projection.layout.role(name)
    outputs = {ledger.projection.homes.index(name, 2): np.asarray(value)}
    ledger.report(role, replica, number, outputs, Stopwatch(f"{name}[{replica}]"), lags)


def never() -> None:
    raise AssertionError("the row is complete")


def in_step(replicas: int = 2) -> Layout:
    return Layout(Role("a", ("a",), replicas=replicas), Role("b", ("b",)))


def in_lanes() -> Layout:
    return Layout(Role("a", ("a",), replicas=4), Role("b", ("b",), take=2))


def test_in_step_a_row_is_the_sum_of_an_iteration() -> None:
    ledger = ledger_of(in_step())
    for number in (1, 2):
        report(ledger, "b", 0, number, 100 * number)
        report(ledger, "a", 1, number, 10 * number)
    for number in (1, 2):
        report(ledger, "a", 0, number, number)
        assert ledger.next(never) == {"a": 11 * number, "b": 100 * number}
    assert not ledger.rows


def test_a_sum_has_the_same_bits_whoever_came_first() -> None:
    for order in ((0, 1, 2), (2, 0, 1)):
        ledger = ledger_of(in_step(3))
        report(ledger, "b", 0, 1, 0)
        for replica in order:
            report(ledger, "a", replica, 1, np.float32((1e8, -1e8, 1.0)[replica]))
        assert ledger.next(never)["a"] == 1.0


def test_what_devices_measured_is_added_too() -> None:
    ledger = ledger_of(Layout(Role("a", ("a",), devices=2)))
    report(ledger, "a", 0, 1, [[1, 2], [30, 40]])
    assert ledger.next(never)["a"].tolist() == [31, 42]


def test_in_lanes_a_row_is_what_came_next_of_each_role() -> None:
    ledger = ledger_of(in_lanes())
    # One lane is ahead of the others, and does work of theirs.
    for replica, number in ((0, 1), (0, 2), (1, 1), (2, 1), (0, 3), (1, 2), (3, 1), (3, 2)):
        report(ledger, "a", replica, number, 10 * replica + number)
    for number, lags in ((1, (0, 1)), (2, (2, 1)), (3, (3, 3)), (4, (0, 0))):
        report(ledger, "b", 0, number, number, lags)
    first, second = ledger.next(never), ledger.next(never)
    assert (first["a"], first["b"], second["a"], second["b"]) == (1 + 2 + 11 + 21, 3, 3 + 12 + 31 + 32, 7)
    assert [(row["lag"].total, row["lag"].count) for row in (first, second)] == [(4, 4), (6, 4)]
    assert [row["lag_max"].total for row in (first, second)] == [2, 3]


def test_a_strand_may_be_a_few_rows_ahead_and_no_more() -> None:
    ledger = ledger_of(in_step(1))
    for number in range(1, MAX_ITERATIONS_AHEAD + 1):
        report(ledger, "a", 0, number, number)
    with pytest.raises(Stuck, match=r"a\[0\] has waited 0.01 s for the reports of others"):
        report(ledger, "a", 0, MAX_ITERATIONS_AHEAD + 1, 0)
    report(ledger, "b", 0, 1, 0)
    ledger.next(never)
    report(ledger, "a", 0, MAX_ITERATIONS_AHEAD + 1, 0)


def test_waiting_for_a_row_gives_time_to_look_after_other_things() -> None:
    ledger = ledger_of(in_step(1))
    report(ledger, "a", 0, 1, 5)
    times = []

    def pause() -> None:
        times.append(1)
        report(ledger, "b", 0, 1, 6)

    assert ledger.next(pause) == {"a": 5, "b": 6}
    assert len(times) == 1


def test_an_error_while_waiting_for_a_row_ends_it() -> None:
    def pause() -> None:
        raise RuntimeError("a role failed")

    with pytest.raises(RuntimeError, match="a role failed"):
        ledger_of(in_step()).next(pause)


def test_a_role_that_takes_reports_once_for_each_part_that_it_takes() -> None:
    actors, learner = in_lanes().roles
    assert (reports_per_iteration(actors), reports_per_iteration(learner)) == (4, 2)
    learners = Layout(Role("a", ("a",), replicas=8), Role("b", ("b",), replicas=2, take=1)).role("b")
    assert reports_per_iteration(learners) == 8
