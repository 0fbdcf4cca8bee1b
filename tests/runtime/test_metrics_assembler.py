"""Reports are assembled into iterations: by number in a synchronous run, by order of arrival with lanes."""

from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from weft.layout.layout import Layout, Role
from weft.runtime.channel import RunControl, Stopwatch, Stuck
from weft.runtime.metrics_assembler import MAX_ITERATIONS_AHEAD, MetricsAssembler, reports_per_iteration


def assembler_of(layout: Layout) -> MetricsAssembler:
    """An assembler for roles that have one metric each, after a state of two leaves."""
    names = sorted(role.name for role in layout.roles)
    metrics = jax.tree.structure({name: 0 for name in names})
    trace = SimpleNamespace(state_tree=jax.tree.structure([0, 0]), metric_tree=metrics)
    projection: Any = SimpleNamespace(layout=layout, trace=trace, homes=(names[0], names[0], *names))
    return MetricsAssembler(RunControl(0.01), projection)


def report(
    assembler: MetricsAssembler, name: str, replica: int, number: int, value: Any, lags: tuple[int, ...] = ()
) -> None:
    role = assembler.projection.layout.role(name)
    outputs = {assembler.projection.homes.index(name, 2): np.asarray(value)}
    assembler.report(role, replica, number, outputs, Stopwatch(f"{name}[{replica}]"), lags)


def not_idle() -> None:
    raise AssertionError("the iteration is complete")


def synchronous_layout(replicas: int = 2) -> Layout:
    return Layout(Role("a", ("a",), replicas=replicas), Role("b", ("b",)))


def lane_layout() -> Layout:
    return Layout(Role("a", ("a",), replicas=4), Role("b", ("b",), take=2))


def test_synchronous_metrics_are_the_sum_over_one_iteration() -> None:
    assembler = assembler_of(synchronous_layout())
    for number in (1, 2):
        report(assembler, "b", 0, number, 100 * number)
        report(assembler, "a", 1, number, 10 * number)
    for number in (1, 2):
        report(assembler, "a", 0, number, number)
        assert assembler.wait_for_next(not_idle) == {"a": 11 * number, "b": 100 * number}
    assert not assembler.pending


def test_the_order_of_arrival_does_not_change_the_bits_of_a_sum() -> None:
    for order in ((0, 1, 2), (2, 0, 1)):
        assembler = assembler_of(synchronous_layout(3))
        report(assembler, "b", 0, 1, 0)
        for replica in order:
            report(assembler, "a", replica, 1, np.float32((1e8, -1e8, 1.0)[replica]))
        assert assembler.wait_for_next(not_idle)["a"] == 1.0


def test_metrics_are_added_over_devices_too() -> None:
    assembler = assembler_of(Layout(Role("a", ("a",), devices=2)))
    report(assembler, "a", 0, 1, [[1, 2], [30, 40]])
    assert assembler.wait_for_next(not_idle)["a"].tolist() == [31, 42]


def test_with_lanes_an_iteration_is_the_next_reports_of_each_role() -> None:
    assembler = assembler_of(lane_layout())
    # Lane 0 is ahead of the others and executes more iterations than they do.
    for replica, number in ((0, 1), (0, 2), (1, 1), (2, 1), (0, 3), (1, 2), (3, 1), (3, 2)):
        report(assembler, "a", replica, number, 10 * replica + number)
    for number, lags in ((1, (0, 1)), (2, (2, 1)), (3, (3, 3)), (4, (0, 0))):
        report(assembler, "b", 0, number, number, lags)
    first, second = assembler.wait_for_next(not_idle), assembler.wait_for_next(not_idle)
    assert (first["a"], first["b"], second["a"], second["b"]) == (1 + 2 + 11 + 21, 3, 3 + 12 + 31 + 32, 7)
    assert [(metrics["lag"].total, metrics["lag"].count) for metrics in (first, second)] == [(4, 4), (6, 4)]
    assert [metrics["lag_max"].total for metrics in (first, second)] == [2, 3]


def test_a_replica_may_be_a_few_iterations_ahead_and_no_more() -> None:
    assembler = assembler_of(synchronous_layout(1))
    for number in range(1, MAX_ITERATIONS_AHEAD + 1):
        report(assembler, "a", 0, number, number)
    with pytest.raises(Stuck, match=r"a\[0\] has waited 0.01 s for the reports of other replicas"):
        report(assembler, "a", 0, MAX_ITERATIONS_AHEAD + 1, 0)
    report(assembler, "b", 0, 1, 0)
    assembler.wait_for_next(not_idle)
    report(assembler, "a", 0, MAX_ITERATIONS_AHEAD + 1, 0)


def test_on_idle_is_called_while_waiting() -> None:
    assembler = assembler_of(synchronous_layout(1))
    report(assembler, "a", 0, 1, 5)
    calls = []

    def on_idle() -> None:
        calls.append(1)
        report(assembler, "b", 0, 1, 6)

    assert assembler.wait_for_next(on_idle) == {"a": 5, "b": 6}
    assert len(calls) == 1


def test_an_error_in_on_idle_ends_the_wait() -> None:
    def on_idle() -> None:
        raise RuntimeError("a role failed")

    with pytest.raises(RuntimeError, match="a role failed"):
        assembler_of(synchronous_layout()).wait_for_next(on_idle)


def test_the_number_of_reports_per_iteration_follows_from_replicas_and_take() -> None:
    actors, learner = lane_layout().roles
    assert (reports_per_iteration(actors), reports_per_iteration(learner)) == (4, 2)
    learners = Layout(Role("a", ("a",), replicas=8), Role("b", ("b",), replicas=2, take=1)).role("b")
    assert reports_per_iteration(learners) == 8
