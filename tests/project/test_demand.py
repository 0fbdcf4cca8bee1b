"""Demand: the values that each role needs, and the role that produces each output."""

import jax.numpy as jnp
from jax import lax

from tests.toys import layout_of, on, projected, toy
from weft.metrics import Mean

TWO = layout_of(one="a", two="b")


def crossing(loop, start, layout=TWO) -> list[str]:
    projection = projected(toy(start, loop), layout)
    return sorted(f"{e.source}->{e.dest} {e.name} x{e.times}" for e in projection.edges)


def homes(loop, start, layout=TWO) -> dict[str, str]:
    projection = projected(toy(start, loop), layout)
    return dict(zip((*projection.trace.state_names, *projection.trace.metric_names), projection.homes, strict=True))


def test_glue_runs_on_every_role_that_needs_its_result() -> None:
    def loop(s):
        return {"x": on("a")(s["x"] + s["n"]), "y": on("b")(s["y"] + s["n"]), "n": (s["n"] + 1) % 7}

    start = {"x": jnp.zeros(4), "y": jnp.zeros(4), "n": jnp.float32(0)}
    assert crossing(loop, start) == []
    assert homes(loop, start) == {"state['x']": "one", "state['y']": "two", "state['n']": "one"}


def test_only_needed_values_cross() -> None:
    def loop(s):
        used, unused = on("a", lambda x: (x + 1, x + 2))(s["x"])
        return {"x": unused, "y": on("b")(used)}

    assert crossing(loop, {"x": jnp.zeros(4), "y": jnp.zeros(4)}) == ["one->two a[0] x1"]


def test_a_stacked_value_crosses_once_from_a_role_that_has_its_rows() -> None:
    def loop(s):
        def tick(c, _):
            x = on("a")(c)
            return on("b")(x), x

        x, xs = lax.scan(tick, s["x"], length=5)
        return {"x": x, "sum": on("b", lambda xs: xs.sum(0))(xs)}

    # The second role receives every row inside the loop and stacks them itself.
    assert crossing(loop, {"x": jnp.zeros(4), "sum": jnp.zeros(4)}) == ["one->two a x5", "two->one state['x'] x5"]

    def without(s):
        x, xs = lax.scan(lambda c, _: ((on("a")(c[0]), on("b")(c[1])), c[0]), (s["x"], s["y"]), length=5)
        return {"x": x[0], "y": x[1], "sum": on("b", lambda xs: xs.sum(0))(xs)}

    start = {"x": jnp.zeros(4), "y": jnp.zeros(4), "sum": jnp.zeros(4)}
    (edge,) = crossing(without, start)
    assert edge.startswith("one->two") and edge.endswith("x1")


def test_an_output_that_no_role_has_is_produced_where_the_fewest_bytes_are_sent() -> None:
    def loop(s):
        large, small = on("a")(s["large"]), on("b")(s["small"])
        return {"large": large, "small": small}, {"both": Mean.of(large.sum() + small.sum())}

    start = {"large": jnp.zeros(100), "small": jnp.zeros(2)}
    assert crossing(loop, start) == ["two->one state['small'] x1"]
    assert crossing(loop, start | {"large": jnp.zeros(1)}) == ["one->two state['large'] x1"]


def test_a_metric_has_one_home() -> None:
    def loop(s):
        x, y = on("a")(s["x"]), on("b")(s["y"])
        return {"x": x, "y": y}, {"y": Mean.of(y.sum()), "mixed": Mean(x.sum(), y.sum())}

    found = homes(loop, {"x": jnp.zeros(4), "y": jnp.zeros(4)})
    assert found["metrics['y'].total"] == found["metrics['y'].count"] == "two"
    assert found["metrics['mixed'].total"] == found["metrics['mixed'].count"]


def test_an_output_that_no_role_needs_is_produced_once() -> None:
    def loop(s):
        return {"x": on("a")(s["x"]), "y": on("b")(s["y"])}, {"constant": Mean.of(jnp.float32(2))}

    projection = projected(toy({"x": jnp.zeros(4), "y": jnp.zeros(4)}, loop), TWO)
    produced = [index for program in projection.programs.values() for index in program.outputs]
    assert sorted(produced) == [0, 1, 2, 3]


def test_a_role_that_starts_from_a_leaf_receives_its_next_value() -> None:
    def loop(s):
        w = on("b", lambda w, x: w + x.sum())(s["w"], on("a", lambda x, w: x + w)(s["x"], s["w"]))
        return {"x": s["x"], "w": w}

    assert crossing(loop, {"x": jnp.zeros(4), "w": jnp.float32(0)}) == ["one->two a x1", "two->one state['w'] x1"]


def test_a_role_without_work_has_an_empty_program() -> None:
    def loop(s):
        on("b")(s["x"])
        return {"x": on("a")(s["x"])}

    projection = projected(toy({"x": jnp.zeros(4)}, loop), TWO)
    assert projection.programs["two"].steps == ()
    assert not projection.multi_segment
