"""The matrix of algorithms and layouts: which of them train together, and which are refused and why.

A cell is an algorithm in small settings, a layout of the catalogue in one of its forms, and an environment. Whether it
trains is decided where it is projected, so the table in `docs/layouts.md` is made without training anything; the test
trains, and holds what it finds against the same cells.
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
from weft.algos.offline import Offline
from weft.datasets.dataset import Source
from weft.datasets.parquet import DatasetWriter
from weft.envs import make
from weft.envs.world import World
from weft.errors import WeftError
from weft.layout.catalogue import LAYOUTS, parse
from weft.ops.actions import random_actions
from weft.runtime.driver import Plan

DEVICE, HOST = "gymnax", "gym"

NUM_ENVS = 8

# For those of an algorithm's settings that there are. Adam counts its steps; returns of whole episodes need some.
SMALL = {"num_envs": NUM_ENVS, "horizon": 6, "hidden": (8,), "epochs": 2, "minibatches": 2, "optimiser": "adam"}
# One iteration of warm-up fills a table with enough to sample from.
SMALL |= {"batch_size": 16, "updates": 2, "capacity": 800, "warm_up_steps": 1, "memory_size": 4}
SMALL |= {"burn_in": 2, "sequence": 4, "period": 2}
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
"""Layouts by their names, each with how often a learner learns while every environment has one rollout."""

SEVERAL = tuple(form for form in FORMS if "=2" in form or "=4" in form)
"""Those with more than one of something."""


@dataclass(frozen=True, eq=False)
class Row:
    """An algorithm, with what is special about it in this row."""

    algo: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    wrappers: tuple[str, ...] = ()
    task: str = "CartPole-v1"


NUMBERS = ("ddpg", "td3", "d4pg", "sac", "continuous_cql")
"""Algorithms whose actions are numbers."""

ROWS = {name: Row(name, task="Pendulum-v1" if name in NUMBERS else "CartPole-v1") for name in ALGOS} | {
    "memory=gru": Row("ppo", {"memory": "gru", "memory_size": 4}),
    "normalise_obs": Row("a2c", wrappers=("normalise_obs",)),
}
"""Every algorithm as it is, and what one of them stands for all others in."""


@dataclass(frozen=True)
class Cell:
    """A row under a form of a layout, on environments of the device or of the host."""

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
        if issubclass(kind, Offline):
            given["dataset"] = dataset(row.task)
        return kind(**{each.name: given[each.name] for each in fields(kind) if each.name in given})

    @property
    def world(self) -> World:
        return World.of(self.env, wrappers=ROWS[self.row].wrappers)

    @property
    def plan(self) -> Plan:
        return Plan.of(self.algo, self.world, self.form)

    @property
    def learns(self) -> int:
        """Optimiser steps in one iteration of the whole loop, after its warm-up."""
        algo = self.algo
        times = (getattr(algo, name, 1) for name in ("epochs", "minibatches", "updates"))
        return FORMS[self.form] * math.prod(times)


@cache
def dataset(task: str) -> str:
    """A few random episodes."""
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
    """Why a cell is refused; nothing if it trains."""
    try:
        cell.plan.project()
    except WeftError as error:
        return str(error)
    return ""


def table() -> str:
    """The matrix as Markdown, on environments of the device: a line for each form, reasons below."""
    notes: dict[str, str] = {}
    lines = [_line("layout", *(f"`{row}`" for row in ROWS)), _line(*["---"] * (len(ROWS) + 1))]
    lines += [_line(f"`{form}`", *(_entry(row, form, notes) for row in ROWS)) for form in FORMS]
    return "\n".join([*lines, "", *(f"{number}. {note}" for number, note in enumerate(notes.values(), 1))])


def _entry(row: str, form: str, notes: dict[str, str]) -> str:
    """Whether a cell trains, else the number of a note; a reason that differs only in its numbers has no other."""
    reason = refusal(Cell(row, form))
    if not reason:
        return "yes"
    kind = re.sub(r"\d+", "N", reason)
    notes.setdefault(kind, f"`{form}`: {reason}")
    return f"no ({list(notes).index(kind) + 1})"


def catalogue() -> str:
    """Every layout of the catalogue: its name, its options with what they are if not given, and what it is."""
    lines = [_line("layout", "options", "what it is"), _line("---", "---", "---")]
    for name, function in LAYOUTS.items():
        options = inspect.signature(function).parameters.values()
        given = ", ".join(f"`{option.name}={option.default}`" for option in options)
        lines.append(_line(f"`{name}`", given, inspect.getdoc(function) or ""))
    return "\n".join(lines)


def roles() -> str:
    """The roles of every form with several of something, as a layout prints itself."""
    return "\n".join(["```text", *(f"{form}\n    {parse(form)}" for form in SEVERAL), "```"])


TABLES = {"catalogue": catalogue, "roles": roles, "matrix": table}
"""What `docs/layouts.md` shows."""


def _line(*entries: str) -> str:
    return f"| {' | '.join(entries)} |"
