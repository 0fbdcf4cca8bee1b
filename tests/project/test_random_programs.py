"""Random programs compute the same values with and without projection, for any placement of their fragments."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
from hypothesis import assume, example, given
from hypothesis import strategies as st

from tests.project.random_programs import Call, Random, Scan, programs
from weft import Layout, Role
from weft.errors import WeftError
from weft.graph.graph import check
from weft.project.project import Projection, project
from weft.runtime.local import LocalEngine

ITERATIONS = 2


def env_of(num_envs: int) -> Any:
    return SimpleNamespace(num_envs=num_envs)


# A metric for which a role receives a leaf of the state whose next value already has a producer.
LATE = Random(
    num_envs=4,
    kinds=("float", "float", "float", "key"),
    body=(
        Scan(
            length=2,
            reverse=False,
            carry=(0,),
            xs=(),
            body=(Call("a", (4,), (), (0,)), Call("b", (5,), (), (0,)), Call("c", (6,), (), (0,))),
            carry_out=(7,),
            ys=(0,),
        ),
        Call("d", (5,), (), (0,)),
        Call("e", (6,), (), (0,)),
    ),
    wiring=(4, 4, 4, 3),
    metrics=(1,),
)
THREE = Layout(Role("role1", ("b", "e")), Role("role2", ("c", "*")), Role("role0", ("a", "d")))


@given(programs(), st.integers(0, 9))
def test_registers_without_lag_change_nothing(program: tuple[Random, Layout], choice: int) -> None:
    algo, layout = program
    consumer = layout.roles[choice % len(layout.roles)]
    others = [role.name for role in layout.roles if role is not consumer]
    if others:
        roles = [replace(role, take=1) if role is consumer else role for role in layout.roles]
        layout = Layout(*roles, registers=[(consumer.name, other) for other in others])
        programs = project(algo, env_of, layout).programs
        read = [(a, b) for a, b in layout.registers if programs[a].register_writes & programs[b].register_reads]
        layout = Layout(*roles, registers=read, max_lag=0 if read else None)
    assert_unchanged(algo, layout)


@example((LATE, THREE))
@given(programs())
def test_a_projected_program_computes_the_same_as_the_plain_one(program: tuple[Random, Layout]) -> None:
    assert_unchanged(*program)


@given(programs(most_replicas=4))
def test_the_number_of_replicas_changes_nothing(program: tuple[Random, Layout]) -> None:
    try:
        project(program[0], env_of, program[1])
    except WeftError:
        assume(False)
    assert_unchanged(*program)


def assert_unchanged(algo: Random, layout: Layout) -> None:
    projection = project(algo, env_of, layout)
    for view in projection.views.values():
        check(view.graph)
    state = algo.init(env_of(4), jax.random.key(7))
    expected, expected_metrics = unprojected(algo, state)
    recorded: list[Any] = []
    ended = LocalEngine(projection, stuck_after=20.0).run(
        state, ITERATIONS, lambda metrics, state: recorded.append(metrics)
    )
    assert_equal(ended, expected, projection)
    for metrics, wanted in zip(recorded, expected_metrics, strict=True):
        own = {name: metrics[name] for name in wanted}
        jax.tree.map(lambda got, want: np.testing.assert_array_equal(got[0], want), own, wanted)


def unprojected(algo: Random, state: Any) -> tuple[Any, list[Any]]:
    """The same loop under plain `jax.jit`, without projection and engine."""
    step = jax.jit(lambda s: algo.step(env_of(4), s))
    metrics = []
    for _ in range(ITERATIONS):
        state, measured = step(state)
        metrics.append(measured)
    return state, metrics


def assert_equal(ended: Any, expected: Any, projection: Projection) -> None:
    for name, got, want in zip(
        projection.trace.state_names, jax.tree.leaves(ended), jax.tree.leaves(expected), strict=True
    ):
        if jax.dtypes.issubdtype(want.dtype, jax.dtypes.prng_key):
            got, want = jax.random.key_data(got), jax.random.key_data(want)
        np.testing.assert_array_equal(np.asarray(got), np.asarray(want), err_msg=name)
