"""Segments overwrite all inputs that they may overwrite, and no others."""

import jax.numpy as jnp
from jax import lax

from tests.toys import assert_unchanged, layout_of, on, projected, replicated, toy
from weft import all_sum
from weft.project.donation import find_donations
from weft.project.program import Compute, Loop, Program, Send, walk

TWO = layout_of(one="a", two="b")


def donated(program: Program) -> list[list[str]]:
    """By segment: the names of the inputs that it overwrites."""
    found = find_donations(program)
    runs = [step for step, _ in walk(program.steps) if isinstance(step, Compute)]
    assert set(found) == set(runs)
    return [sorted(value.name for value in found[run]) for run in runs]


def of(start, loop, layout, role) -> list[list[str]]:
    return donated(projected(toy(start, loop), layout).programs[role])


def test_a_program_of_one_segment_overwrites_its_whole_state() -> None:
    start = {"x": jnp.zeros(4), "n": jnp.int32(0), "w": jnp.zeros((2, 2))}
    found = of(start, lambda s: {"x": on("a")(s["x"]), "n": s["n"] + 1, "w": s["w"] * 2}, layout_of(one="*"), "one")
    assert found == [["state['n']", "state['w']", "state['x']"]]


def test_sent_and_received_values_are_never_overwritten() -> None:
    def loop(s):
        x = on("a")(s["x"])
        return {"x": x, "y": on("b", lambda y, x: y + x)(s["y"], x)}

    projection = projected(toy({"x": jnp.zeros(4), "y": jnp.zeros(4)}, loop), TWO)
    # `x` is sent to the other role, which may still read it during the next iteration.
    assert donated(projection.programs["one"]) == [[]]
    assert donated(projection.programs["two"]) == [["state['y']"]]


def test_a_carry_is_overwritten_unless_it_is_sent() -> None:
    def loop(s):
        def tick(carry, _):
            local, sent = carry
            local, sent = on("a", lambda k, s: (k + 1, s + 1))(local, sent)
            return (local, on("b")(sent)), None

        (local, sent), _ = lax.scan(tick, (s["local"], s["sent"]), length=3)
        return {"local": local, "sent": sent}

    found = of({"local": jnp.zeros(4), "sent": jnp.zeros(4)}, loop, TWO, "one")
    assert found == [["state['local']"]]


def test_values_stacked_by_a_loop_are_never_overwritten() -> None:
    def loop(s):
        _, xs = lax.scan(lambda c, _: ((new := on("b")(on("a")(c))), new), s["x"], length=3)
        return {"x": s["x"], "last": xs[-1]}

    assert of({"x": jnp.zeros(4), "last": jnp.zeros(4)}, loop, TWO, "two") == [[]]
    assert_unchanged(toy({"x": jnp.zeros(4), "last": jnp.zeros(4)}, loop), TWO)


def test_merged_values_are_never_overwritten() -> None:
    def loop(s):
        return {"x": s["x"] + 1, "w": on("a", lambda x, w: (w + all_sum(x.sum())) * 2)(s["x"], s["w"])}

    algo = toy(lambda env: {"x": jnp.zeros(env.num_envs), "w": jnp.float32(0)}, loop)
    program = projected(algo, replicated(a=2)).programs["a"]
    merged = {
        v for step, _ in walk(program.steps) if hasattr(step, "operations") for v in (*step.inputs, *step.outputs)
    }
    assert merged
    assert not merged & {value for values in find_donations(program).values() for value in values}


def test_a_received_value_that_two_leaves_share_is_not_overwritten() -> None:
    def loop(s):
        x = on("a")(s["x"])
        return {"x": x, "again": x, "z": on("a", lambda a, b: a + b)(s["again"], s["z"])}

    def passing(s):
        y = on("b")(on("a")(s["x"]))
        return {"x": y, "again": y, "z": on("b", lambda a, b: a + b)(s["again"], s["z"])}

    start = dict.fromkeys(("x", "again", "z"), jnp.zeros(4))
    program = projected(toy(start, passing), TWO).programs["two"]
    assert "state['again']" not in sum(donated(program), [])
    # Within one program XLA returns two separate results, so all inputs may be overwritten.
    assert of(start, loop, layout_of(one="*"), "one") == [["state['again']", "state['x']", "state['z']"]]


def test_leaves_that_hold_the_same_array_are_not_overwritten() -> None:
    def loop(s):
        z = on("b", lambda p, q, x: jnp.mod(p + 2 * q + x, 31))(s["p"], s["q"], on("a")(s["x"]))
        return {"x": s["x"], "p": z, "q": z}

    algo = toy(dict.fromkeys("xpq", jnp.arange(4.0)), loop)
    assert donated(projected(algo, TWO).programs["two"]) == [[]]
    assert_unchanged(algo, TWO)


def test_a_value_that_a_later_segment_reads_is_not_overwritten() -> None:
    def loop(s):
        y = on("b")(on("a", lambda x: x + 1)(s["x"]))
        return {"x": on("a", lambda x, y: jnp.mod(x + y, 31))(s["x"], y)}

    algo = toy({"x": jnp.arange(4.0)}, loop)
    first, second = donated(projected(algo, TWO).programs["one"])
    assert "state['x']" not in first + second
    assert_unchanged(algo, TWO)


def test_an_input_without_an_output_of_its_shape_is_not_overwritten() -> None:
    def loop(s):
        return {"x": on("a", lambda x, t: x + t.sum())(s["x"], s["table"]), "table": s["table"]}

    (names,) = of({"x": jnp.zeros(4), "table": jnp.zeros((3, 3))}, loop, layout_of(one="*"), "one")
    assert names == ["state['x']"]


def test_a_value_read_in_every_step_of_a_loop_is_not_overwritten() -> None:
    def loop(s):
        # `y` is computed once and read in every step of the loop.
        y = on("a", lambda x: x * 3)(s["x"])
        x, _ = lax.scan(lambda c, _: (on("b")(on("a", lambda c, y: c + y)(c, y)), None), s["x"], length=3)
        return {"x": x}

    program = projected(toy({"x": jnp.zeros(4)}, loop), TWO).programs["one"]
    (inner,) = [s for s, _ in walk(program.steps) if isinstance(s, Loop) and any(isinstance(x, Send) for x in s.body)]
    runs = [step for step in inner.body if isinstance(step, Compute)]
    outside = {value for run in runs for value in run.inputs if not any(value in other.outputs for other in runs)}
    assert any(value.name == "a" for value in outside)
    assert not {v for run in runs for v in find_donations(program)[run] if v.name == "a" and v not in run.outputs}
