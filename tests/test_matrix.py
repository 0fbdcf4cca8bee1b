"""The cells of the matrix train: every environment step is collected and learned from once."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import optax
import pytest

from tests.covering import FULL_SIZE, covering
from tests.matrix import (
    DEVICE,
    FORMS,
    HOST,
    KINDS,
    NUM_ENVS,
    OFFLINE,
    PARALLEL,
    REFUSED,
    ROWS,
    WITH_TABLE,
    Cell,
    properties,
)
from weft.algorithm import name_of
from weft.algos import ALGOS
from weft.envs.wrappers.wrapper import WrappedState
from weft.layout.catalogue import LAYOUTS
from weft.project.links import is_key
from weft.project.program import Send, walk
from weft.report.update import Update
from weft.runtime import driver, local, wiring
from weft.runtime.channel import Stream
from weft.runtime.local import ThreadedRun

ITERATIONS = 3

TRAINED = [
    Cell(row, form, kind)
    for row in ALGOS
    for form in FORMS
    for kind in KINDS
    if row not in OFFLINE and (row, form) not in REFUSED
]
if not FULL_SIZE:
    TRAINED = covering(TRAINED, properties)
VARIANTS = [
    Cell("normalise_obs", "impala:actors=2,take=2,max_lag=0", HOST),
    Cell("normalise_obs", "seed:envs=2", DEVICE),
]
MEMORY = {
    Cell("memory=gru", "impala:actors=4,take=2,max_lag=1", DEVICE): "actor",
    Cell("memory=gru", "seed:envs=2,take=1", HOST): "inference",
}


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


class CountingStream(Stream):
    """A stream that counts the items taken from it."""

    taken = 0

    def get(self) -> Any:
        item = super().get()
        self.taken += 1
        return item


class Updates(list[Update]):
    """The updates of a run, in order."""

    def __call__(self, update: Update) -> None:
        self.append(update)


@dataclass
class TrainedCell:
    """A cell after training."""

    result: driver.Result
    threaded_run: ThreadedRun
    """The last one, after the warm-up's own."""
    updates: Updates

    @classmethod
    def of(cls, cell: Cell, monkeypatch: pytest.MonkeyPatch) -> "TrainedCell":
        threaded_runs, updates = recorded_runs(monkeypatch), Updates()
        monkeypatch.setattr(wiring, "Stream", CountingStream)
        steps = ITERATIONS * steps_of(cell)
        result = driver.train_in_memory(
            cell.algo, cell.world, layout=cell.form, steps=steps, observers=[updates], stuck_after=120.0
        )
        return cls(result, threaded_runs[-1], updates)

    def total(self, metric: str) -> float:
        return sum(update.metrics[metric][0].sum() for update in self.updates)

    def count(self, metric: str) -> float:
        return sum(update.metrics[metric][1].sum() for update in self.updates if metric in update.metrics)


def recorded_runs(monkeypatch: pytest.MonkeyPatch) -> list[ThreadedRun]:
    """The list to which every threaded run is added from now on."""
    runs: list[ThreadedRun] = []

    class RecordedRun(ThreadedRun):
        def __post_init__(self) -> None:
            super().__post_init__()
            runs.append(self)

    monkeypatch.setattr(local, "ThreadedRun", RecordedRun)
    return runs


def steps_of(cell: Cell) -> int:
    """Environment steps in one iteration."""
    return NUM_ENVS * cell.algo.horizon  # type: ignore[attr-defined]


def test_every_algorithm_has_its_catalogue_name() -> None:
    assert [name_of(kind()) for kind in ALGOS.values()] == list(ALGOS)


def test_the_matrix_has_every_algorithm_and_every_layout() -> None:
    assert set(ALGOS) <= set(ROWS)
    assert {form.partition(":")[0] for form in FORMS} == {form.partition(":")[0] for form in PARALLEL} == set(LAYOUTS)


@pytest.mark.parametrize("cell", [*(cell for cell in TRAINED if cell.row not in WITH_TABLE), *VARIANTS], ids=str)
def test_a_cell_learns_from_every_step_once(cell: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    run, steps = TrainedCell.of(cell, monkeypatch), ITERATIONS * steps_of(cell)
    assert (run.result.steps, run.result.iterations, len(run.updates)) == (steps, ITERATIONS, ITERATIONS)
    assert_finite(run)
    assert steps_collected(run) == steps
    assert steps_learned(run, cell) == steps
    assert optimiser_steps(run.result.state) == ITERATIONS * cell.updates
    assert_everything_was_consumed(run.threaded_run)


@pytest.mark.parametrize("cell", [cell for cell in TRAINED if cell.row in WITH_TABLE], ids=str)
def test_a_cell_with_a_table_makes_every_step_and_every_update(cell: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    run, steps, algo = TrainedCell.of(cell, monkeypatch), ITERATIONS * steps_of(cell), cell.algo
    assert (run.result.steps, run.result.iterations, len(run.updates)) == (steps, ITERATIONS, ITERATIONS)
    assert_finite(run)
    assert steps_collected(run) == steps
    after_warm_up = ITERATIONS - algo.warm_up_iterations
    assert after_warm_up > 0
    assert int(run.result.state.learner.updates) == after_warm_up * cell.updates
    # Each step of a sequence counts. Steps that an automatic reset inserted do not.
    items = after_warm_up * algo.updates * algo.batch_size  # type: ignore[attr-defined]
    assert 0.5 * items < run.count("loss") <= items * getattr(algo, "sequence", 1)
    assert_everything_was_consumed(run.threaded_run)


@pytest.mark.parametrize("form", ["fused", "fused:devices=2", "allreduce:workers=2"])
@pytest.mark.parametrize("row", OFFLINE)
def test_a_cell_that_learns_offline_draws_every_batch(row: str, form: str) -> None:
    cell, updates = Cell(row, form), Updates()
    algo = cell.algo
    steps = ITERATIONS * algo.updates * algo.batch_size  # type: ignore[attr-defined]
    result = driver.train_in_memory(algo, cell.world, layout=form, steps=steps, observers=[updates])
    assert (result.steps, result.iterations) == (steps, ITERATIONS)
    assert int(result.state.learner.updates) == ITERATIONS * cell.updates
    assert sum(update.metrics["loss"][1].sum() for update in updates) == steps


@pytest.mark.parametrize(("cell", "home"), MEMORY.items(), ids=str)
def test_the_role_that_acts_owns_the_policys_memory(cell: Cell, home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = TrainedCell.of(cell, monkeypatch)
    assert_finite(run)
    assert steps_collected(run) == steps_learned(run, cell) == run.result.steps
    assert optimiser_steps(run.result.state) == ITERATIONS * cell.updates
    assert_everything_was_consumed(run.threaded_run)
    projection = run.threaded_run.projection
    homes = zip(projection.trace.state_names, projection.homes, strict=False)
    assert {where for leaf, where in homes if leaf.startswith("state.memory")} == {home}


def test_replicas_on_different_devices_merge(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = Cell("normalise_obs", "sebulba:take=2,actor_devices=0+1,learner_devices=2+3")
    assert_everything_was_consumed(TrainedCell.of(cell, monkeypatch).threaded_run)


def assert_finite(run: TrainedCell) -> None:
    for update in run.updates:
        for name, pair in update.metrics.items():
            assert np.isfinite(pair).all(), name
    for path, leaf in jax.tree_util.tree_flatten_with_path(run.result.state)[0]:
        assert is_key(leaf) or np.isfinite(leaf).all(), jax.tree_util.keystr(path)


def steps_collected(run: TrainedCell) -> float:
    """The environment steps of a run, as the environments count them."""
    state = run.result.state
    env = state.env
    while isinstance(env, WrappedState):
        env = env.inner
    if hasattr(env, "token"):
        # The token also counts the call to reset and, in every iteration, the call for the episodes' statistics.
        return int(env.token.sum()) - NUM_ENVS * (1 + ITERATIONS)
    return run.total("episode_length") + float(env.episodes.running_length.sum())


def steps_learned(run: TrainedCell, cell: Cell) -> float:
    """The number of environment steps that entered the loss."""
    if cell.row == "reinforce":
        # REINFORCE leaves out unfinished episodes, so the exact number is unknown.
        assert 0 < run.count("entropy") <= run.result.steps and run.count("episode_length") > 0
        return run.result.steps
    return run.count("entropy") / getattr(cell.algo, "epochs", 1)


def optimiser_steps(state: Any) -> int:
    return int(optax.tree.get(state.opt, "count"))


def assert_everything_was_consumed(run: ThreadedRun) -> None:
    """Streams are empty after as many items as the programs state, and all work of the lanes was consumed in time."""
    layout, expected = run.projection.layout, {}
    for role in layout.roles:
        for step, times in walk(run.projection.programs[role.name].steps):
            if isinstance(step, Send):
                expected[step.message] = run.passes * times * max(role.replicas, layout.role(step.dest).replicas)
    sent = dict.fromkeys(expected, 0)
    for (message, *_), stream in run.wiring.streams.items():
        assert isinstance(stream, CountingStream) and stream.sent == stream.taken and not stream.items
        sent[message] += stream.sent
    assert sent == expected
    for admission in run.wiring.admissions:
        iterations = run.passes * len(admission.lanes)
        assert all(0 < lane.begun == lane.ready == lane.consumed for lane in admission.lanes)
        assert sum(lane.consumed for lane in admission.lanes) == admission.lags.total() == iterations
        assert admission.version == admission.batches == iterations // admission.take
        assert admission.max_lag is None or max(admission.lags) <= admission.max_lag
