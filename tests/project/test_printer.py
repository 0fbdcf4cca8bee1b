"""Prints of projections are equal to the golden files."""

import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest
from jax import lax

from tests.toys import on, projected, replicated, toy
from weft import Layout, Role, all_mean
from weft.metrics import Mean
from weft.project.printer import FORMATS, as_json, as_text, describe

GOLDEN = Path(__file__).parents[1] / "golden"

LAYOUTS = {
    "apart": Layout(Role("world", ("env",)), Role("learner", ("act", "learn")), name="apart"),
    "replicas": Layout(Role("world", ("env", "act"), replicas=2), Role("learner", ("learn",)), name="replicas"),
    "lanes": Layout(
        Role("world", ("env",), replicas=4, on=("0", "1")),
        Role("inference", ("act",), replicas=4, batch=4, wait=0.002),
        Role("learner", ("learn",), take=2),
        registers=[("learner", "inference")],
        max_lag=1,
        name="lanes",
    ),
}


def loop(s: dict[str, Any]) -> Any:
    def tick(x, _):
        x = on("env", lambda x: {"obs": x + 1})(on("act", lambda w, x: w + x)(s["w"], x))["obs"]
        return x, x * 2

    x, xs = lax.scan(tick, s["x"], length=3)
    w = on("learn", lambda xs, w: w + xs.mean())(xs, s["w"])
    return {"x": jnp.mod(on("env", lambda x, w: {"obs": x + w})(x, w)["obs"], 31), "w": w}, {"w": Mean.of(w)}


def described(layout: Layout) -> dict[str, Any]:
    algo = toy(lambda env: {"x": jnp.arange(float(env.num_envs)), "w": jnp.float32(0)}, loop)
    return describe(projected(algo, layout))


@pytest.mark.parametrize("style", FORMATS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_prints_equal_the_golden_files(layout: str, style: str) -> None:
    expected = (GOLDEN / f"{layout}.{style}.txt").read_text()
    assert FORMATS[style](described(LAYOUTS[layout])) + "\n" == expected


def test_the_json_holds_the_whole_description() -> None:
    description = described(LAYOUTS["replicas"])
    assert json.loads(as_json(description)) == description


def test_a_program_of_several_iterations_prints_rates_per_iteration() -> None:
    algo = toy(lambda env: {"x": jnp.arange(float(env.num_envs)), "w": jnp.float32(0)}, loop)
    one, five = (describe(projected(algo, LAYOUTS["apart"], length)) for length in (1, 5))
    assert [edge["rate"] for edge in one["edges"]] == [edge["rate"] for edge in five["edges"]]
    assert [role["runs"] for role in one["roles"]] == [role["runs"] for role in five["roles"]]
    assert one["environment steps per iteration"] == five["environment steps per iteration"] == 16


def test_a_merge_is_printed_with_its_role() -> None:
    def merging(s):
        return {"x": s["x"], "w": on("a", lambda x, w: w + all_mean(x.mean()))(s["x"], s["w"])}

    algo = toy(lambda env: {"x": jnp.zeros(env.num_envs), "w": jnp.float32(0)}, merging)
    text = as_text(describe(projected(algo, replicated(a=2))))
    assert "a x2" in text and "all_mean of 1 value over replicas" in text
    assert "all_mean" in text.split("runs")[1].splitlines()[0]


@pytest.mark.parametrize(("size", "printed"), [(8, "8 B"), (1000, "1.0 kB"), (2_500_000, "2.5 MB"), (4e9, "4.0 GB")])
def test_bytes_are_printed_in_the_fitting_unit(size: float, printed: str) -> None:
    edge = {"from": "a", "to": "b", "value": "x", "kind": "stream", "rate": "r", "bytes": size}
    edge |= {"replicas": "gather", "axis": 1}
    text = as_text({"layout": "l", "environment steps per iteration": 1, "roles": [], "edges": [edge]})
    assert text.splitlines()[0] == "layout l: 1 environment step in one iteration"
    assert text.splitlines()[-1].split("x", 1)[1].strip() == f"{printed}  gather along axis 1"
