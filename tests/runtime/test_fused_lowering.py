"""Property 3: the fused layout lowers to the same program as a loop written by hand without weft."""

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


def lower_by_hand(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Lowers the hand-written loop with jit, without dead code, which weft does not trace."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    init, step = importlib.import_module("plain_ppo").make_ppo(**SIZE)
    state = jax.eval_shape(init, jax.random.key(0))
    closed = jax.make_jaxpr(lambda s: lax.scan(lambda carry, _: step(carry), s, length=LENGTH))(state)
    jaxpr, _ = partial_eval.dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars), instantiate=True)
    function = jex.jaxpr_as_fun(jex.ClosedJaxpr(jaxpr, closed.consts))
    inputs = [jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype) for var in jaxpr.invars]
    return jax.jit(function, donate_argnums=tuple(range(len(inputs))), keep_unused=True).lower(*inputs)


def lower_with_weft() -> Any:
    program = Plan.of(PPO(**SIZE), "gymnax:CartPole-v1", "fused").project(LENGTH).programs["all"]
    ((compute, donated),) = find_donations(program).items()
    return lower_compute(compute, ReplicaContext(), donated)


def without_names(text: str) -> str:
    """Numbers functions in order of appearance, and removes the names of results."""
    names: dict[str, str] = {}
    text = re.sub(r'\{?jax\.result_info = "[^"]*"\}?', "", text)
    return re.sub(r"@[\w.]+", lambda match: names.setdefault(match[0], f"@f{len(names)}"), text)


def test_fused_ppo_lowers_to_the_hand_written_program(monkeypatch: pytest.MonkeyPatch) -> None:
    found, expected = lower_with_weft().as_text(), lower_by_hand(monkeypatch).as_text()
    assert "fragment" not in found
    assert len(found) > 100_000, "the program must be complete"
    assert without_names(found) == without_names(expected)
