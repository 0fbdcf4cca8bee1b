"""Property 3: the fused layout compiles to what the plain loop, written by hand without weft, compiles to."""

import importlib
import re
from pathlib import Path
from typing import Any

import jax
import jax.extend.core as jex
import pytest
from jax import lax
from jax.interpreters import partial_eval

from weft.algos.ppo import PPO
from weft.project.donation import find_donations
from weft.runtime.compile import lower_compute
from weft.runtime.driver import Plan
from weft.runtime.interpreter import ReplicaContext

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SIZE = {"num_envs": 8, "horizon": 16}
LENGTH = 3


def by_hand(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The hand-written loop as lowered by jit, without the operations that nothing uses: weft does not trace those."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    init, step = importlib.import_module("plain_ppo").make_ppo(**SIZE)
    state = jax.eval_shape(init, jax.random.key(0))
    closed = jax.make_jaxpr(lambda s: lax.scan(lambda carry, _: step(carry), s, length=LENGTH))(state)
    jaxpr, _ = partial_eval.dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars), instantiate=True)
    function = jex.jaxpr_as_fun(jex.ClosedJaxpr(jaxpr, closed.consts))
    inputs = [jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype) for var in jaxpr.invars]
    return jax.jit(function, donate_argnums=tuple(range(len(inputs))), keep_unused=True).lower(*inputs)


def by_weft() -> Any:
    program = Plan.of(PPO(**SIZE), "gymnax:CartPole-v1", "fused").project(LENGTH).programs["all"]
    ((run, donated),) = find_donations(program).items()
    return lower_compute(run, ReplicaContext(), donated)


def without_names(text: str) -> str:
    """Functions numbered in the order in which they appear, and no paths of results."""
    names: dict[str, str] = {}
    text = re.sub(r'\{?jax\.result_info = "[^"]*"\}?', "", text)
    return re.sub(r"@[\w.]+", lambda found: names.setdefault(found[0], f"@f{len(names)}"), text)


def test_fused_ppo_lowers_to_the_hand_written_program(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = by_weft().as_text(), by_hand(monkeypatch).as_text()
    assert "fragment" not in ours
    assert len(ours) > 100_000, "the program is all there"
    assert without_names(ours) == without_names(theirs)
