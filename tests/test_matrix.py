"""Every algorithm under every layout of the catalogue trains and takes every step once, or is refused with a reason."""

import dataclasses
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import optax
import pytest

from tests.matrix import DEVICE, FORMS, HOST, NUM_ENVS, ROWS, SEVERAL, Cell, refusal
from weft import check
from weft.algorithm import name_of
from weft.algos import ALGOS
from weft.envs.adapters.gymnasium import GymPoolFactory
from weft.errors import WeftError
from weft.layout.catalogue import LAYOUTS
from weft.project.links import is_key
from weft.project.program import Send, walk
from weft.report.update import Update
from weft.runtime import driver, local, wiring
from weft.runtime.channel import Stream
from weft.runtime.local import ThreadedRun

ITERATIONS = 3

# What is refused, all of it: a refusal that does not stand here fails, and so does one here that is none any more.
MERGES = (
    r"merges values over the \d replicas of (actor|env|worker), so each lane would wait for all others, "
    r"but .* set take=\d, use one"
)
NO_TABLE = r"role 'replay' runs 'replay', and the algorithm has no such fragment, only .*: take a layout"
NO_STEPS = r"role '(actor|env|worker)' runs 'env', and the algorithm has no such fragment, only .*: take a layout"
WITH_TABLE = ("dqn", "r2d2", "ddpg", "td3", "d4pg", "sac", "discrete_sac")
OFFLINE = ("bc", "cql", "continuous_cql")
APEX = tuple(form for form in FORMS if form.startswith("apex"))
REFUSED = {
    ("normalise_obs", form): MERGES
    for form in (
        "impala:actors=2",
        "impala:actors=4,take=2,max_lag=1",
        "impala:actors=4,learners=2",
        "seed:envs=2,take=1",
        "a3c:workers=2",
    )
}
REFUSED |= {(row, form): NO_TABLE for row in ROWS if row not in (*WITH_TABLE, *OFFLINE) for form in APEX}
REFUSED |= {(row, form): NO_STEPS for row in OFFLINE for form in FORMS if not form.startswith(("fused", "allreduce"))}

# One algorithm goes under every form; the others where a layout has several of something, in one form of each kind. So
# it is for those with a table, but all of these share the loop around it.
FIRST = "a2c"
FIRST_WITH_TABLE = "dqn"
WIDE = (
    "fused:devices=2",
    "actors:actors=2",
    "impala:actors=4,take=2,max_lag=1",
    "sebulba:take=2,actor_devices=0+1,learner_devices=2+3",
    "seed:envs=2",
    "seed:envs=2,take=1",
    "allreduce:workers=2",
    "a3c:workers=2",
)
ENVS = (DEVICE, HOST)
TRAINED = [
    *(Cell(FIRST, form, env) for form in WIDE for env in ENVS),
    *(Cell(FIRST, form, ENVS[place % 2]) for place, form in enumerate(FORMS) if form not in (*WIDE, *APEX)),
    *(
        Cell(row, form, ENVS[(number + place) % 2])
        for number, row in enumerate(ALGOS)
        for place, form in enumerate(WIDE)
        if row != FIRST and row not in (*WITH_TABLE, *OFFLINE)
    ),
]
WITH_TABLE_TRAINED = [
    *(Cell(FIRST_WITH_TABLE, form, ENVS[place % 2]) for place, form in enumerate((*WIDE, *APEX))),
    *(
        Cell(row, form, ENVS[(number + place) % 2])
        for number, row in enumerate(WITH_TABLE)
        for place, form in enumerate((WIDE[number % len(WIDE)], "apex:actors=2"))
        if row != FIRST_WITH_TABLE
    ),
]
VARIANTS = [
    Cell("normalise_obs", "impala:actors=2,take=2,max_lag=0", HOST),
    Cell("normalise_obs", "seed:envs=2", DEVICE),
]
MEMORY = {
    Cell("memory=gru", "impala:actors=4,take=2,max_lag=1", DEVICE): "actor",
    Cell("memory=gru", "seed:envs=2,take=1", HOST): "inference",
}


@pytest.fixture(autouse=True)
def quick_to_compile() -> Iterator[None]:
    """What is compiled here runs a few times only: without optimisation it is there in two thirds of the time."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


class Counted(Stream):
    """A stream that counts what is taken from it."""

    taken = 0

    def get(self) -> Any:
        item = super().get()
        self.taken += 1
        return item


class Updates(list[Update]):
    """Those of a run, in order."""

    def __call__(self, update: Update) -> None:
        self.append(update)


@dataclass
class Run:
    """A cell that was trained."""

    result: driver.Result
    session: ThreadedRun
    """The last one: a warm-up has its own."""
    updates: Updates

    @classmethod
    def of(cls, cell: Cell, monkeypatch: pytest.MonkeyPatch) -> "Run":
        sessions, updates = kept(monkeypatch), Updates()
        monkeypatch.setattr(wiring, "Stream", Counted)
        steps = ITERATIONS * steps_of(cell)
        result = driver.train_in_memory(
            cell.algo, cell.world, layout=cell.form, steps=steps, observers=[updates], stuck_after=120.0
        )
        return cls(result, sessions[-1], updates)

    def total(self, metric: str) -> float:
        return sum(update.metrics[metric][0].sum() for update in self.updates)

    def count(self, metric: str) -> float:
        return sum(update.metrics[metric][1].sum() for update in self.updates if metric in update.metrics)


def kept(monkeypatch: pytest.MonkeyPatch) -> list[ThreadedRun]:
    """The sessions that are begun from now on."""
    sessions: list[ThreadedRun] = []

    class Kept(ThreadedRun):
        def __post_init__(self) -> None:
            super().__post_init__()
            sessions.append(self)

    monkeypatch.setattr(local, "ThreadedRun", Kept)
    return sessions


def steps_of(cell: Cell) -> int:
    """Environment steps in one iteration."""
    return NUM_ENVS * cell.algo.horizon  # type: ignore[attr-defined]


def test_algorithms_go_by_the_names_that_they_are_asked_for_by() -> None:
    assert [name_of(kind()) for kind in ALGOS.values()] == list(ALGOS)


def test_the_matrix_has_every_algorithm_and_every_layout() -> None:
    assert set(ALGOS) <= set(ROWS)
    assert {form.partition(":")[0] for form in FORMS} == {form.partition(":")[0] for form in SEVERAL} == set(LAYOUTS)


@pytest.mark.parametrize("row", ROWS)
def test_what_is_refused_is_what_is_written_here(row: str) -> None:
    found = {(row, form) for form in FORMS if refusal(Cell(row, form))}
    assert found == {cell for cell in REFUSED if cell[0] == row}


@pytest.mark.parametrize("cell", TRAINED + VARIANTS, ids=str)
def test_a_cell_trains_and_takes_every_step_once(cell: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    run, steps = Run.of(cell, monkeypatch), ITERATIONS * steps_of(cell)
    assert (run.result.steps, run.result.iterations, len(run.updates)) == (steps, ITERATIONS, ITERATIONS)
    assert_finite(run)
    assert steps_made(run) == steps
    assert steps_learned(run, cell) == steps
    assert optimiser_steps(run.result.state) == ITERATIONS * cell.learns
    assert_nothing_is_left(run.session)


@pytest.mark.parametrize("cell", WITH_TABLE_TRAINED, ids=str)
def test_a_cell_with_a_table_makes_every_step_and_every_update(cell: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    run, steps, algo = Run.of(cell, monkeypatch), ITERATIONS * steps_of(cell), cell.algo
    assert (run.result.steps, run.result.iterations, len(run.updates)) == (steps, ITERATIONS, ITERATIONS)
    assert_finite(run)
    assert steps_made(run) == steps
    learned = ITERATIONS - algo.warm_up_iterations
    assert learned > 0 and int(run.result.state.learner.updates) == learned * cell.learns
    # Steps of sequences count one by one, and those that an autoreset inserted do not.
    items = learned * algo.updates * algo.batch_size  # type: ignore[attr-defined]
    assert 0.5 * items < run.count("loss") <= items * getattr(algo, "sequence", 1)
    assert_nothing_is_left(run.session)


@pytest.mark.parametrize("form", ["fused", "fused:devices=2", "allreduce:workers=2"])
@pytest.mark.parametrize("row", OFFLINE)
def test_a_cell_that_learns_offline_draws_every_batch(row: str, form: str) -> None:
    cell, updates = Cell(row, form), Updates()
    algo = cell.algo
    steps = ITERATIONS * algo.updates * algo.batch_size  # type: ignore[attr-defined]
    result = driver.train_in_memory(algo, cell.world, layout=form, steps=steps, observers=[updates])
    assert (result.steps, result.iterations) == (steps, ITERATIONS)
    assert int(result.state.learner.updates) == ITERATIONS * cell.learns
    assert sum(update.metrics["loss"][1].sum() for update in updates) == steps


@pytest.mark.parametrize(("cell", "home"), MEMORY.items(), ids=str)
def test_memory_lives_with_who_acts(cell: Cell, home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run.of(cell, monkeypatch)
    assert_finite(run)
    assert steps_made(run) == steps_learned(run, cell) == run.result.steps
    assert optimiser_steps(run.result.state) == ITERATIONS * cell.learns
    assert_nothing_is_left(run.session)
    projection = run.session.projection
    homes = zip(projection.trace.state_names, projection.homes, strict=False)
    assert {where for leaf, where in homes if leaf.startswith("state.memory")} == {home}


def test_replicas_on_different_devices_merge(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = Cell("normalise_obs", "sebulba:take=2,actor_devices=0+1,learner_devices=2+3")
    assert_nothing_is_left(Run.of(cell, monkeypatch).session)


@pytest.mark.parametrize("kind", [DEVICE, HOST])
@pytest.mark.parametrize(("row", "form"), REFUSED)
def test_a_cell_is_refused_before_anything_starts(
    row: str, form: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell, sessions = Cell(row, form, kind), kept(monkeypatch)
    monkeypatch.setattr(threading.Thread, "start", forbidden)
    monkeypatch.setattr(GymPoolFactory, "make_pool", forbidden)
    monkeypatch.setattr(driver.Plan, "init", forbidden)
    with pytest.raises(WeftError, match=REFUSED[row, form]):
        driver.train_in_memory(cell.algo, cell.world, layout=form, steps=100)
    assert not sessions


def forbidden(*_: Any, **__: Any) -> Any:
    raise AssertionError("something started")


IN_STEP = (
    "impala:actors=2,take=2,max_lag=0",
    "sebulba:take=2,max_lag=0,actor_devices=0+1,learner_devices=2+3",
    # Calls made as one may be rounded otherwise than each by itself, and whether they are is a matter of time.
    "seed:envs=2,take=2,max_lag=0,batch=1",
    "a3c:workers=2,take=2,max_lag=0",
)
ALONE = (
    "impala:actors=1,max_lag=0",
    "sebulba:actors=1,max_lag=0,actor_devices=1,learner_devices=2",
    "seed:envs=1,take=1,max_lag=0",
    "a3c:workers=1,max_lag=0",
)


ONLINE = [row for row in ALGOS if row not in OFFLINE]


@pytest.mark.parametrize(("row", "form"), [(row, IN_STEP[number % 4]) for number, row in enumerate(ONLINE)])
def test_without_lag_and_with_all_taken_a_layout_is_its_own_in_step(row: str, form: str) -> None:
    found = check(on_the_host(Cell(row, form)), Cell(row, form).env, layout=form, iterations=2)
    assert found.identical and found.against.endswith("in step"), found.table()


@pytest.mark.parametrize(("row", "form"), [(row, ALONE[(number + 2) % 4]) for number, row in enumerate(ONLINE)])
def test_with_one_of_each_role_it_is_the_fused_loop(row: str, form: str) -> None:
    found = check(on_the_host(Cell(row, form)), Cell(row, form).env, layout=form, against="fused", iterations=2)
    assert found.identical and found.against == "fused", found.table()


def on_the_host(cell: Cell) -> Any:
    """A cell's algorithm with its table, if it has one, on the host: what is compared must have the same."""
    return dataclasses.replace(cell.algo, replay="host") if cell.row in WITH_TABLE else cell.algo  # type: ignore[call-arg]


def assert_finite(run: Run) -> None:
    for update in run.updates:
        for name, pair in update.metrics.items():
            assert np.isfinite(pair).all(), name
    for path, leaf in jax.tree_util.tree_flatten_with_path(run.result.state)[0]:
        assert is_key(leaf) or np.isfinite(leaf).all(), jax.tree_util.keystr(path)


def steps_made(run: Run) -> float:
    """The environments' own count of their steps."""
    state = run.result.state
    env = state.place.env if hasattr(state, "place") else state.env
    while hasattr(env, "memory"):
        env = env.inner
    if hasattr(env, "token"):
        # A call to reset, and one in every iteration for the statistics of episodes.
        return int(env.token.sum()) - NUM_ENVS * (1 + ITERATIONS)
    return run.total("episode_length") + float(env.episodes.running_length.sum())


def steps_learned(run: Run, cell: Cell) -> float:
    """The steps that the loss was over."""
    if cell.row == "reinforce":
        # It leaves out the episodes that are not over; those that are it must have seen.
        assert 0 < run.count("entropy") <= run.result.steps and run.count("episode_length") > 0
        return run.result.steps
    return run.count("entropy") / getattr(cell.algo, "epochs", 1)


def optimiser_steps(state: Any) -> int:
    return int(optax.tree.get(state.opt, "count"))


def assert_nothing_is_left(session: ThreadedRun) -> None:
    """What was put into streams was taken, as often as the programs say; what lanes began was taken, in time."""
    layout, expected = session.projection.layout, {}
    for role in layout.roles:
        for step, times in walk(session.projection.programs[role.name].steps):
            if isinstance(step, Send):
                expected[step.message] = session.passes * times * max(role.replicas, layout.role(step.dest).replicas)
    sent = dict.fromkeys(expected, 0)
    for (message, *_), stream in session.wiring.streams.items():
        assert isinstance(stream, Counted) and stream.sent == stream.taken and not stream.items
        sent[message] += stream.sent
    assert sent == expected
    for admission in session.wiring.admissions:
        iterations = session.passes * len(admission.lanes)
        assert all(0 < lane.begun == lane.ready == lane.consumed for lane in admission.lanes)
        assert sum(lane.consumed for lane in admission.lanes) == admission.lags.total() == iterations
        assert admission.version == admission.batches == iterations // admission.take
        assert admission.max_lag is None or max(admission.lags) <= admission.max_lag
