"""The refused cells of the matrix: exactly the listed ones, each with its reason, before anything starts."""

import threading
from typing import Any

import pytest

from tests.covering import FULL_SIZE, covering
from tests.documentation import DOCS, assert_up_to_date
from tests.matrix import FORMS, KINDS, REFUSED, ROWS, TABLES, Cell, refusal
from weft.envs.adapters.gymnasium import GymPoolFactory
from weft.errors import WeftError
from weft.runtime import driver, local


def reasons(cell: Cell) -> set[tuple[str, str]]:
    """The pairs of properties of a refused cell that a covering set must contain."""
    reason = REFUSED[cell.row, cell.form]
    return {(reason, cell.form.partition(":")[0]), (reason, cell.kind)}


ATTEMPTED = [Cell(row, form, kind) for row, form in REFUSED for kind in KINDS]
if not FULL_SIZE:
    ATTEMPTED = covering(ATTEMPTED, reasons)


# Algorithms with the same loop are refused alike. The others are projected under every layout by `make test-all`.
PROJECTED = list(ROWS) if FULL_SIZE else ["a2c", "ppo", "dqn", "bc", "normalise_obs"]


@pytest.mark.parametrize("row", PROJECTED)
def test_the_refused_cells_are_the_listed_ones(row: str) -> None:
    found = {(row, form) for form in FORMS if refusal(Cell(row, form))}
    assert found == {cell for cell in REFUSED if cell[0] == row}


@pytest.mark.parametrize("cell", ATTEMPTED, ids=str)
def test_a_cell_is_refused_before_anything_starts(cell: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", forbidden)
    monkeypatch.setattr(GymPoolFactory, "make_pool", forbidden)
    monkeypatch.setattr(driver.Plan, "init", forbidden)
    monkeypatch.setattr(local.ThreadedRun, "__init__", forbidden)
    with pytest.raises(WeftError, match=REFUSED[cell.row, cell.form]):
        driver.train_in_memory(cell.algo, cell.world, layout=cell.form, steps=100)


def test_every_table_of_the_matrix_is_in_the_documentation() -> None:
    page = (DOCS / "layouts.md").read_text()
    assert all(f"<!-- table: {name} -->" in page for name in TABLES)


@pytest.mark.full
def test_the_documented_matrix_is_up_to_date() -> None:
    assert_up_to_date(DOCS / "layouts.md")


def forbidden(*_: Any, **__: Any) -> Any:
    raise AssertionError("something started")
