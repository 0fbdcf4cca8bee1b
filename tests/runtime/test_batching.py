"""Calls that are made as one give each caller what it would have got alone."""

import threading
import time
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from tests.toys import apart, on, projected, toy
from weft.project.program import Compute
from weft.runtime.batching import BatchedCompute, Batcher, compile_batched
from weft.runtime.channel import RunControl, Stopwatch
from weft.runtime.compile import compute_function
from weft.runtime.devices import Devices
from weft.runtime.interpreter import ReplicaContext


def acting() -> tuple[Compute, list[bool]]:
    """A run of observations and parameters, and which of its inputs are parameters."""

    def act(w, x):
        return jnp.tanh(x) * w["scale"] + w["shift"], jnp.sum(x)

    def loop(s):
        x, total = on("act", act)(s["w"], s["x"])
        return s | {"x": x, "total": total}

    start = {"w": {"scale": jnp.float32(1), "shift": jnp.zeros(3)}, "x": jnp.zeros(3), "total": jnp.float32(0)}
    projection = projected(toy(start, loop), apart(all="*"))
    (program,) = projection.programs.values()
    (run,) = program.steps
    assert isinstance(run, Compute)
    names = {value: projection.trace.state_names[leaf] for leaf, value in program.inputs.items()}
    return run, ["'w'" in names[value] for value in run.inputs]


def inputs_of(run: Compute, shared: list[bool], parameters: int, number: int) -> list[Any]:
    """Inputs from two small numbers: one for what is shared, one for the rest."""
    return [
        jnp.arange(1.0, 1.0 + np.prod(value.shape)).reshape(value.shape) * (parameters if same else number)
        for value, same in zip(run.inputs, shared, strict=True)
    ]


@pytest.fixture(scope="module")
def compiled() -> tuple[Compute, list[bool], BatchedCompute]:
    run, shared = acting()
    assert any(shared) and not all(shared)
    return run, shared, compile_batched(run, ReplicaContext(), Devices(), shared, most=5)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_each_call_gets_what_it_would_have_got_alone(compiled: Any, count: int) -> None:
    run, shared, coalesced = compiled
    calls = [inputs_of(run, shared, 2, number) for number in range(count)]
    found = coalesced([(0, inputs) for inputs in calls])
    assert len(found) == count
    for results, inputs in zip(found, calls, strict=True):
        for result, expected in zip(results, compute_function(run, ReplicaContext())(*inputs), strict=True):
            assert result.dtype == expected.dtype
            np.testing.assert_allclose(result, expected, rtol=1e-6)


def test_the_newest_parameters_of_any_call_serve_all(compiled: Any) -> None:
    run, shared, coalesced = compiled
    versions = (3, 7, 5)
    found = coalesced([(version, inputs_of(run, shared, version, number)) for number, version in enumerate(versions)])
    for number, results in enumerate(found):
        alone = compute_function(run, ReplicaContext())(*inputs_of(run, shared, 7, number))
        for result, expected in zip(results, alone, strict=True):
            np.testing.assert_allclose(result, expected, rtol=1e-6)


@pytest.mark.parametrize(("most", "sizes"), [(1, [1]), (2, [1, 2]), (4, [1, 2, 4]), (6, [1, 2, 4, 6])])
def test_there_is_a_compiled_run_for_each_of_a_few_sizes(most: int, sizes: list[int]) -> None:
    run, shared = acting()
    assert sorted(compile_batched(run, ReplicaContext(), Devices(), shared, most).executables) == sizes


def test_a_batch_is_filled_up_to_the_next_size() -> None:
    used: list[tuple[int, list[Any]]] = []

    def executable(size: int) -> Any:
        def call(common: Any, own: Any) -> list[list[Any]]:
            used.append((size, own))
            return [[common[0] + each[0]] for each in own]

        return call

    coalesced = BatchedCompute((True, False), {size: executable(size) for size in (1, 2, 4)})
    assert coalesced([(0, (100, number)) for number in range(3)]) == [[100], [101], [102]]
    assert used == [(4, [[0], [1], [2], [2]])]


def doubling(most: int) -> BatchedCompute:
    def call(_: Any, own: Any) -> list[list[Any]]:
        return [[2 * value] for (value,) in own]

    return BatchedCompute((False,), dict.fromkeys(range(1, most + 1), call))


def test_a_full_batch_goes_at_once() -> None:
    together = Batcher(RunControl(5.0), doubling(3), most=3, seconds=60.0)
    results: dict[int, Any] = {}

    def call(number: int) -> None:
        results[number] = together(0, Stopwatch(f"a[{number}]"), (number,))

    threads = [threading.Thread(target=call, args=(number,), daemon=True) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(5)
    assert results == {number: [2 * number] for number in range(3)}
    assert together.sizes == {3: 1}


def test_a_call_that_nobody_joins_goes_after_its_time() -> None:
    together, clock = Batcher(RunControl(5.0), doubling(2), most=2, seconds=0.02), Stopwatch("a[0]")
    began = time.perf_counter()
    assert together(0, clock, (21,)) == [42]
    assert time.perf_counter() - began >= 0.02 and clock.read(time.perf_counter()) >= 0.02
    assert together.sizes == {1: 1}
