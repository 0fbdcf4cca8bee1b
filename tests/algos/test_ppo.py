import importlib
import re
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import weft.fragment
from weft.algos import ALGOS
from weft.envs import make

SMALL = {"num_envs": 4, "horizon": 32}
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def unmarked(monkeypatch):
    """weft imported anew with every mark taken off: plain functions all the way down."""
    kept = {name: module for name, module in sys.modules.items() if name.split(".")[0] == "weft"}
    fragment = kept["weft.fragment"]
    monkeypatch.setattr(fragment, "_marked", lambda label, fn: fn)
    monkeypatch.setattr(fragment, "_all_mean", lambda tree: tree)
    for name in kept:
        if name.startswith(("weft.envs", "weft.algos", "weft.algorithm")):
            del sys.modules[name]
    yield importlib.import_module("weft.algos").ALGOS, importlib.import_module("weft.envs").make
    for name in [name for name in sys.modules if name.split(".")[0] == "weft"]:
        del sys.modules[name]
    sys.modules.update(kept)


@pytest.fixture
def plain(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("plain_ppo").make_ppo(**SMALL)


def program(step, state):
    """The StableHLO text of several steps, with functions and results numbered in the order that they appear."""
    text = jax.jit(lambda state: lax.scan(lambda s, _: step(s), state, length=3)).lower(state).as_text()
    text = re.sub(r'\{?jax\.result_info = "[^"]*"\}?', "", text)
    names: dict[str, str] = {}
    return re.sub(r"@[\w.]+", lambda found: names.setdefault(found[0], f"@f{len(names)}"), text)


def test_unmarked_ppo_is_the_program_written_by_hand(unmarked, plain, key):
    algos, make_env = unmarked
    algo, env = algos["ppo"](**SMALL), make_env("gymnax:CartPole-v1", SMALL["num_envs"])
    init, step = plain
    ours, theirs = algo.init(env, key), init(key)
    for leaf, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert jax.typeof(leaf) == jax.typeof(other)
    assert program(lambda s: algo.step(env, s), ours) == program(step, theirs)
