"""Asynchronous layouts without lag give the result of the fused run: bit for bit where replicas merge no sums."""

import dataclasses
from typing import Any

import pytest

from tests.matrix import OFFLINE, WITH_TABLE, Cell
from weft import check
from weft.algos import ALGOS

pytestmark = [pytest.mark.usefixtures("shared_reference"), pytest.mark.optimised]

ALL_LANES_CONSUMED = (
    "impala:actors=2,take=2,max_lag=0",
    "sebulba:take=2,max_lag=0,actor_devices=0+1,learner_devices=2+3",
    # Batched calls may round differently from single calls, and timing decides which calls are batched.
    "seed:envs=2,take=2,max_lag=0,batch=1",
    "a3c:workers=2,take=2,max_lag=0",
)
ONE_LANE = (
    "impala:actors=1,max_lag=0",
    "sebulba:actors=1,max_lag=0,actor_devices=1,learner_devices=2",
    "seed:envs=1,take=1,max_lag=0",
    "a3c:workers=1,max_lag=0",
)

ONLINE = [row for row in ALGOS if row not in OFFLINE]


@pytest.mark.parametrize(("row", "form"), [(row, ALL_LANES_CONSUMED[number % 4]) for number, row in enumerate(ONLINE)])
def test_without_lag_and_with_all_lanes_consumed_a_layout_equals_the_fused_run(row: str, form: str) -> None:
    found = check(on_the_host(Cell(row, form)), Cell(row, form).env, layout=form, iterations=2)
    merges = form.startswith(("sebulba", "a3c"))  # over the learner's devices, over the workers
    assert found.against == "fused" and (found.equal if merges else found.identical), found.table()


@pytest.mark.parametrize(("row", "form"), [(row, ONE_LANE[(number + 2) % 4]) for number, row in enumerate(ONLINE)])
def test_without_lag_and_with_one_lane_a_layout_equals_the_fused_program(row: str, form: str) -> None:
    found = check(on_the_host(Cell(row, form)), Cell(row, form).env, layout=form, against="fused", iterations=2)
    assert found.identical and found.against == "fused", found.table()


def on_the_host(cell: Cell) -> Any:
    """The cell's algorithm, with a table on the host: both sides of a comparison must have the same kind of table."""
    return dataclasses.replace(cell.algo, replay="host") if cell.row in WITH_TABLE else cell.algo  # type: ignore[call-arg]
