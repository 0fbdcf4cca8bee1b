"""A batched call returns the same results as the call alone."""

import threading
import time
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from tests.toys import layout_of, on, projected, toy
from weft.project.program import Compute
from weft.runtime.batching import BatchedCompute, Batcher, compile_batched
from weft.runtime.channel import RunControl, Stopwatch
from weft.runtime.compile import compute_function
from weft.runtime.devices import Devices
from weft.runtime.interpreter import ReplicaContext


def act_compute() -> tuple[Compute, list[bool]]:
    """A `Compute` of parameters and observations, and which of its inputs are parameters."""

    def act(w, x):
        return jnp.tanh(x) * w["scale"] + w["shift"], jnp.sum(x)

    def loop(s):
        x, total = on("act", act)(s["w"], s["x"])
        return s | {"x": x, "total": total}

    start = {"w": {"scale": jnp.float32(1), "shift": jnp.zeros(3)}, "x": jnp.zeros(3), "total": jnp.float32(0)}
    projection = projected(toy(start, loop), layout_of(all="*"))
    (program,) = projection.programs.values()
    (compute,) = program.steps
    assert isinstance(compute, Compute)
    names = {value: projection.trace.state_names[leaf] for leaf, value in program.inputs.items()}
    return compute, ["'w'" in names[value] for value in compute.inputs]


def make_inputs(compute: Compute, shared: list[bool], parameters: int, observation: int) -> list[Any]:
    """Inputs that are multiples of two numbers: one for the shared inputs, one for the others."""
    return [
        jnp.arange(1.0, 1.0 + np.prod(value.shape)).reshape(value.shape) * (parameters if is_shared else observation)
        for value, is_shared in zip(compute.inputs, shared, strict=True)
    ]


@pytest.fixture(scope="module")
def compiled() -> tuple[Compute, list[bool], BatchedCompute]:
    compute, shared = act_compute()
    assert any(shared) and not all(shared)
    return compute, shared, compile_batched(compute, ReplicaContext(), Devices(), shared, max_size=5)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_each_call_returns_the_same_as_alone(compiled: Any, count: int) -> None:
    compute, shared, batched = compiled
    calls = [make_inputs(compute, shared, 2, number) for number in range(count)]
    found = batched([(0, inputs) for inputs in calls])
    assert len(found) == count
    for results, inputs in zip(found, calls, strict=True):
        for result, expected in zip(results, compute_function(compute, ReplicaContext())(*inputs), strict=True):
            assert result.dtype == expected.dtype
            np.testing.assert_allclose(result, expected, rtol=1e-6)


def test_all_calls_use_the_newest_parameters_of_the_batch(compiled: Any) -> None:
    compute, shared, batched = compiled
    versions = (3, 7, 5)
    calls = [(version, make_inputs(compute, shared, version, number)) for number, version in enumerate(versions)]
    for number, results in enumerate(batched(calls)):
        alone = compute_function(compute, ReplicaContext())(*make_inputs(compute, shared, 7, number))
        for result, expected in zip(results, alone, strict=True):
            np.testing.assert_allclose(result, expected, rtol=1e-6)


@pytest.mark.parametrize(("max_size", "sizes"), [(1, [1]), (2, [1, 2]), (4, [1, 2, 4]), (6, [1, 2, 4, 6])])
def test_sizes_are_powers_of_two_and_the_maximum(max_size: int, sizes: list[int]) -> None:
    compute, shared = act_compute()
    assert sorted(compile_batched(compute, ReplicaContext(), Devices(), shared, max_size).executables) == sizes


def test_a_batch_is_padded_to_the_next_size() -> None:
    used: list[tuple[int, list[Any]]] = []

    def executable(size: int) -> Any:
        def call(common: Any, own: Any) -> list[list[Any]]:
            used.append((size, own))
            return [[common[0] + each[0]] for each in own]

        return call

    batched = BatchedCompute((True, False), {size: executable(size) for size in (1, 2, 4)})
    assert batched([(0, (100, number)) for number in range(3)]) == [[100], [101], [102]]
    assert used == [(4, [[0], [1], [2], [2]])]


def doubling(max_size: int) -> BatchedCompute:
    def call(_: Any, own: Any) -> list[list[Any]]:
        return [[2 * value] for (value,) in own]

    return BatchedCompute((False,), dict.fromkeys(range(1, max_size + 1), call))


def test_a_full_batch_starts_at_once() -> None:
    batcher = Batcher(RunControl(5.0), doubling(3), max_size=3, max_wait=60.0)
    results: dict[int, Any] = {}

    def call(number: int) -> None:
        results[number] = batcher(0, Stopwatch(f"a[{number}]"), (number,))

    threads = [threading.Thread(target=call, args=(number,), daemon=True) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(5)
    assert results == {number: [2 * number] for number in range(3)}
    assert batcher.sizes == {3: 1}


def test_a_single_call_starts_after_max_wait() -> None:
    batcher, stopwatch = Batcher(RunControl(5.0), doubling(2), max_size=2, max_wait=0.02), Stopwatch("a[0]")
    started = time.perf_counter()
    assert batcher(0, stopwatch, (21,)) == [42]
    elapsed = time.perf_counter() - started
    assert elapsed >= 0.02 and 0.0 < stopwatch.read(time.perf_counter()) <= elapsed
    assert batcher.sizes == {1: 1}
