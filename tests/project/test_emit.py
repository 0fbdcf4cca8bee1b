"""Programs match each other: every message that is sent is received, and messages are few."""

from collections import Counter

import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from jax import lax

from tests.project.random_programs import programs
from tests.toys import env_of, layout_of, on, projected, replicated, toy
from weft.project.program import Compute, HostCall, Loop, Merge, Recv, Send, Step, values_read, walk
from weft.project.project import Projection, project

TWO = layout_of(one="a", two="b")


def shape(steps: tuple[Step, ...]) -> list:
    names = {Compute: "run", Send: "send", Recv: "receive", Merge: "merge"}
    return [shape(step.body) if isinstance(step, Loop) else names[type(step)] for step in steps]


def assert_messages_match(projection: Projection) -> None:
    """Assert that every message is received as often as it is sent, with values of the same shapes and dtypes."""
    sent: Counter = Counter()
    received: Counter = Counter()
    for role, program in projection.programs.items():
        for step, times in walk(program.steps):
            if isinstance(step, Send):
                kinds = tuple((v.shape, str(v.aval.dtype)) for v in step.payloads[0] if v is not None)
                sent[step.message, role, step.dest, kinds] += times
            elif isinstance(step, Recv):
                kinds = tuple((v.shape, str(v.aval.dtype)) for v in step.payloads[0] if v is not None)
                received[step.message, step.source, role, kinds] += times
    assert sent == received


def assert_written_before_read(projection: Projection) -> None:
    for program in projection.programs.values():
        bound = {program.replica_index, *program.inputs.values()}
        _bind(program.steps, bound)
        assert bound.issuperset(program.outputs.values())


def _bind(steps: tuple[Step, ...], bound: set) -> None:
    for step in steps:
        if isinstance(step, Loop):
            assert bound.issuperset(first for _, first in step.starts)
            inside = {*bound, step.index, *(slot for slot, _ in step.starts)}
            _bind(step.body, inside)
            assert inside.issuperset(value for _, value in (*step.updates, *step.results, *step.stacks))
            bound.update(slot for slot, _ in (*step.results, *step.stacks))
            bound.update(
                value
                for inner, _ in walk(step.body)
                if isinstance(inner, Compute | HostCall)
                for value in inner.outputs
            )
            continue
        assert bound.issuperset(values_read(step))
        if isinstance(step, Compute):
            bound.update(step.outputs)
        elif isinstance(step, Recv):
            bound.update(value for part in step.payloads for value in part if value is not None)
        elif isinstance(step, Merge | HostCall):
            bound.update(step.outputs)


@settings(max_examples=60)
@given(programs())
def test_in_random_programs_every_sent_message_is_received(program) -> None:
    algo, layout = program
    projection = project(algo, env_of, layout)
    assert_messages_match(projection)
    assert_written_before_read(projection)


def test_values_due_to_one_receiver_are_sent_as_one_message() -> None:
    def loop(s):
        p, q = on("a", lambda x: (x + 1, x + 2))(s["x"])
        r = on("a")(p)
        return {"x": on("b", lambda p, q, r: p + q + r)(p, q, r)}

    projection = projected(toy({"x": jnp.zeros(4)}, loop), TWO)
    assert shape(projection.programs["one"].steps) == [["run", "send", "receive"]]
    assert shape(projection.programs["two"].steps) == [["receive", "run", "send"]]
    assert_messages_match(projection)


def test_a_role_with_only_device_code_is_one_compiled_segment() -> None:
    def loop(s):
        x, _ = lax.scan(lambda c, _: (on("b")(on("a")(c)), None), s["x"], length=3)
        return {"x": on("c")(x)}

    program = projected(toy({"x": jnp.zeros(4)}, loop), layout_of(all="*"), length=7).programs["all"]
    assert shape(program.steps) == ["run"]
    assert not program.communicates


def test_a_shared_loop_sends_in_every_step() -> None:
    def loop(s):
        x, xs = lax.scan(lambda c, _: (on("b")(on("a")(c)), c), s["x"], length=3)
        return {"x": x, "xs": xs}

    projection = projected(toy({"x": jnp.zeros(4), "xs": jnp.zeros((3, 4))}, loop), TWO)
    sends = [times for step, times in walk(projection.programs["one"].steps) if isinstance(step, Send)]
    assert sends == [3]
    assert_messages_match(projection)
    assert_written_before_read(projection)


@pytest.mark.parametrize("counts", [(4, 1), (1, 4), (4, 2)])
def test_a_message_has_one_payload_for_each_linked_replica(counts: tuple[int, int]) -> None:
    algo = toy(lambda env: {"x": jnp.zeros(env.num_envs)}, lambda s: {"x": on("b")(on("a")(s["x"]))})
    projection = projected(algo, replicated(a=counts[0], b=counts[1]))
    fan = max(counts) // min(counts)
    larger, smaller = ("a", "b") if counts[0] > counts[1] else ("b", "a")
    for role, expected in ((larger, 1), (smaller, fan)):
        steps = [step for step, _ in walk(projection.programs[role].steps) if isinstance(step, Send | Recv)]
        assert steps and {len(step.payloads) for step in steps} == {expected}
