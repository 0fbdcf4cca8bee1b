"""The matrix of algorithms and layouts: the cells that train, and the reasons for refusing the others.

A cell is an algorithm with small settings, a form of a catalogue layout (its name and options), and a kind of
environment. The projection decides whether a cell trains, so the table in `docs/layouts.md` is made without training.
`test_matrix.py` trains cells and `test_refusals.py` checks the refusals. `make test` trains a covering set of cells and
`make test-all` trains all of them.
"""

import atexit
import inspect
import math
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any

import jax
import numpy as np

from weft.algorithm import Algorithm
from weft.algos import ALGOS
from weft.datasets.dataset import Source
from weft.datasets.parquet import DatasetWriter
from weft.envs import make
from weft.envs.world import World
from weft.errors import WeftError
from weft.layout.catalogue import LAYOUTS, parse
from weft.ops.actions import random_actions
from weft.project.project import project
from weft.runtime.driver import Plan

DEVICE, HOST = "gymnax", "gym"
KINDS = (DEVICE, HOST)
"""Environments inside the compiled program, and environments in Python."""

NUM_ENVS = 8

# An algorithm gets those of these settings that it has. Adam's state counts the optimiser steps for the tests.
SMALL = {"num_envs": NUM_ENVS, "horizon": 6, "hidden": (8,), "epochs": 2, "minibatches": 2, "optimiser": "adam"}
# After one iteration of warm-up the table holds enough items to sample from.
SMALL |= {"batch_size": 16, "updates": 2, "capacity": 800, "warm_up_steps": 1, "memory_size": 4}
SMALL |= {"burn_in": 2, "sequence": 4, "period": 2}
# REINFORCE learns from finished episodes only, so its rollouts must contain some.
LONGER = {"reinforce": {"horizon": 24}}

FORMS = {
    "fused": 1,
    "fused:devices=2": 1,
    "actors": 1,
    "actors:actors=2": 1,
    "impala:actors=1": 1,
    "impala:actors=2": 2,
    "impala:actors=2,take=2,max_lag=0": 1,
    "impala:actors=4,take=2,max_lag=1": 2,
    "impala:actors=4,learners=2": 2,
    "sebulba:actors=1": 1,
    "sebulba:take=2,actor_devices=0+1,learner_devices=2+3": 1,
    "seed": 1,
    "seed:envs=2": 1,
    "seed:envs=1,take=1": 1,
    "seed:envs=2,take=1": 2,
    "allreduce": 1,
    "allreduce:workers=2": 1,
    "a3c:workers=1": 1,
    "a3c:workers=2": 2,
    "a3c:workers=2,take=2": 1,
    "apex:actors=1": 1,
    "apex:actors=2": 1,
    "apex:actors=4,replays=2": 1,
}
"""Layouts with their options, each with the number of updates while every environment collects one rollout."""

PARALLEL = tuple(form for form in FORMS if "=2" in form or "=4" in form)
"""The layouts with several replicas or devices."""

OFFLINE = ("bc", "cql", "continuous_cql")
WITH_TABLE = ("dqn", "r2d2", "ddpg", "td3", "d4pg", "sac", "discrete_sac")

# Every refusal of the matrix, with its reason. A cell that is refused and not listed fails, and so does a listed cell
# that trains.
MERGES = (
    r"merges values over the \d replicas of (actor|env|worker), so each lane would wait for all others, "
    r"but .* set take=\d, use one"
)
NO_TABLE = r"role 'replay' runs 'replay', and the algorithm has no such fragment, only .*: take a layout"
NO_STEPS = r"role '(actor|env|worker)' runs 'env', and the algorithm has no such fragment, only .*: take a layout"


@dataclass(frozen=True, eq=False)
class Row:
    """An algorithm with the settings and environment of its row."""

    algo: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    wrappers: tuple[str, ...] = ()
    task: str = "CartPole-v1"


CONTINUOUS = ("ddpg", "td3", "d4pg", "sac", "continuous_cql")
"""Algorithms for continuous actions."""

ROWS = {name: Row(name, task="Pendulum-v1" if name in CONTINUOUS else "CartPole-v1") for name in ALGOS} | {
    "memory=gru": Row("ppo", {"memory": "gru", "memory_size": 4}),
    "normalise_obs": Row("a2c", wrappers=("normalise_obs",)),
}
"""Every algorithm, and two variants of one algorithm that all others share."""

APEX = tuple(form for form in FORMS if form.startswith("apex"))
MERGING = (
    "impala:actors=2",
    "impala:actors=4,take=2,max_lag=1",
    "impala:actors=4,learners=2",
    "seed:envs=2,take=1",
    "a3c:workers=2",
)
REFUSED = {("normalise_obs", form): MERGES for form in MERGING}
REFUSED |= {(row, form): NO_TABLE for row in ROWS if row not in (*WITH_TABLE, *OFFLINE) for form in APEX}
REFUSED |= {(row, form): NO_STEPS for row in OFFLINE for form in FORMS if not form.startswith(("fused", "allreduce"))}
"""The reason for each refused pair of a row and a form."""


@dataclass(frozen=True)
class Cell:
    """A row under a form of a layout, with one kind of environment."""

    row: str
    form: str
    kind: str = DEVICE

    def __str__(self) -> str:
        return f"{self.row}-{self.form}-{self.kind}"

    @property
    def env(self) -> str:
        return f"{self.kind}:{ROWS[self.row].task}"

    @property
    def algo(self) -> Algorithm:
        row = ROWS[self.row]
        kind = ALGOS[row.algo]
        given = SMALL | LONGER.get(row.algo, {}) | dict(row.settings)
        names = {each.name for each in fields(kind)}
        if "dataset" in names:
            given["dataset"] = dataset(row.task)
            names -= {"horizon", "capacity", "warm_up_steps"}  # they collect nothing
        return kind(**{name: given[name] for name in names if name in given})

    @property
    def world(self) -> World:
        return World.of(self.env, wrappers=ROWS[self.row].wrappers)

    @property
    def plan(self) -> Plan:
        return Plan.of(self.algo, self.world, self.form)

    @property
    def updates(self) -> int:
        """Optimiser steps in one iteration of the whole loop, after its warm-up."""
        algo = self.algo
        times = (getattr(algo, name, 1) for name in ("epochs", "minibatches", "updates"))
        return FORMS[self.form] * math.prod(times)


def properties(cell: Cell) -> set[tuple[str, object]]:
    """The pairs of properties of a trained cell that a covering set must contain.

    Algorithms with a table share one loop, and so do the others: every form is trained with one of them, and every
    layout with each loop and each kind of environment. Every algorithm is trained with and without lanes.
    """
    name, lanes = cell.form.partition(":")[0], parse(cell.form).lanes > 0
    return {
        ("form", cell.form),
        ("kind", (name, cell.kind)),
        ("table", (name, cell.row in WITH_TABLE)),
        ("algorithm", (cell.row, lanes)),
    }


@cache
def dataset(task: str) -> str:
    """The folder of a dataset of a few random episodes."""
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder)
    random, steps, env = np.random.default_rng(0), 64, make(f"{DEVICE}:{task}", 1)
    obs = random.normal(size=(steps + 1, *env.observation_space.shape)).astype(np.float32)
    ended = np.arange(1, steps + 1) % 16 == 0
    source = Source(f"{DEVICE}:{task}", env.observation_space, env.action_space)
    with DatasetWriter(f"{folder}/played", source) as writer:
        writer.write(
            {
                "obs": obs[:-1],
                "action": np.asarray(random_actions(env.action_space, jax.random.key(0), (steps,))),
                "reward": np.ones(steps, np.float32),
                "terminated": ended,
                "truncated": np.zeros(steps, bool),
                "final_obs": obs[1:],
            }
        )
    return f"{folder}/played"


@cache
def refusal(cell: Cell) -> str:
    """The reason for refusing a cell; empty if it trains."""
    plan = cell.plan
    try:
        # Unlike `plan.project`, this traces a fragment once for all layouts of an algorithm.
        project(plan.algo, plan.env_of, plan.layout)
    except WeftError as error:
        return str(error)
    return ""


def table() -> str:
    """The matrix as Markdown, for environments on the device: a line for each form, and the reasons below."""
    notes: dict[str, str] = {}
    lines = [_line("layout", *(f"`{row}`" for row in ROWS)), _line(*["---"] * (len(ROWS) + 1))]
    lines += [_line(f"`{form}`", *(_entry(row, form, notes) for row in ROWS)) for form in FORMS]
    return "\n".join([*lines, "", *(f"{number}. {note}" for number, note in enumerate(notes.values(), 1))])


def _entry(row: str, form: str, notes: dict[str, str]) -> str:
    """`yes`, or the number of the reason for refusing. Reasons that differ only in their numbers share one."""
    reason = refusal(Cell(row, form))
    if not reason:
        return "yes"
    without_numbers = re.sub(r"\d+", "N", reason)
    notes.setdefault(without_numbers, f"`{form}`: {reason}")
    return f"no ({list(notes).index(without_numbers) + 1})"


def catalogue() -> str:
    """Every layout of the catalogue: its name, its options with their defaults, and its description."""
    lines = [_line("layout", "options", "description"), _line("---", "---", "---")]
    for name, function in LAYOUTS.items():
        options = inspect.signature(function).parameters.values()
        given = ", ".join(f"`{option.name}={option.default}`" for option in options)
        lines.append(_line(f"`{name}`", given, inspect.getdoc(function) or ""))
    return "\n".join(lines)


def roles() -> str:
    """The roles of every parallel form, as a layout prints itself."""
    return "\n".join(["```text", *(f"{form}\n    {parse(form)}" for form in PARALLEL), "```"])


TABLES = {"catalogue": catalogue, "roles": roles, "matrix": table}
"""The generated parts of `docs/layouts.md`."""


def _line(*entries: str) -> str:
    return f"| {' | '.join(entries)} |"
