"""Batched execution of calls from several replicas: central inference.

The replicas of a role execute the same `Compute` instructions, each on its own inputs. If the layout sets `batch`, a
call waits for calls of the same `Compute` from other replicas, and all of them execute as one: the function is mapped
over the calls, so that ten small matrix products become one. Inputs that come from a register (the parameters) are not
stacked: the newest version among the calls serves all of them. A batch starts when it is full or when its first call
has waited long enough. It is padded to the next of a few sizes, each of which has its own executable.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from weft.project.program import Compute
from weft.runtime.channel import RunControl, Stopwatch
from weft.runtime.compile import compiler_options, compute_function
from weft.runtime.devices import Devices
from weft.runtime.interpreter import ReplicaContext

Executable = Callable[[Sequence[Any], Sequence[Sequence[Any]]], list[list[Any]]]


@dataclass(frozen=True, eq=False)
class BatchedCompute:
    """A `Compute` compiled for several calls at once: one executable per batch size."""

    shared: tuple[bool, ...]
    """For every input: whether all calls share it."""
    executables: dict[int, Executable]
    """By batch size, a function of the shared inputs and of each call's own inputs."""
    unbatched: Callable[..., list[Any]] | None = None
    """The executable for a single call."""

    def __call__(self, calls: Sequence[tuple[int, Sequence[Any]]]) -> list[list[Any]]:
        """Returns the results of each call. A call is a register version and the inputs."""
        if len(calls) == 1 and self.unbatched is not None:
            return [self.unbatched(*calls[0][1])]
        size = min(size for size in self.executables if size >= len(calls))
        newest = max(calls, key=lambda call: call[0])[1]
        common = [value for value, shared in zip(newest, self.shared, strict=True) if shared]
        own = [[value for value, shared in zip(inputs, self.shared, strict=True) if not shared] for _, inputs in calls]
        own += own[-1:] * (size - len(calls))
        return self.executables[size](common, own)[: len(calls)]


def compile_batched(
    compute: Compute,
    context: ReplicaContext,
    devices: Devices,
    shared: Sequence[bool],
    max_size: int,
    unbatched: Callable[..., list[Any]] | None = None,
) -> BatchedCompute:
    """Compiles a `Compute` for 1, 2, 4 ... and `max_size` calls. `unbatched`, if given, serves single calls."""
    smallest = 1 if unbatched is None else 2
    powers = [2**power for power in range(max_size.bit_length() + 1)]
    sizes = sorted({min(size, max_size) for size in powers if size >= smallest})
    mapped = jax.vmap(compute_function(compute, context), in_axes=tuple(None if same else 0 for same in shared))

    def call_batch(common: Sequence[Any], own: Sequence[Sequence[Any]]) -> list[list[Any]]:
        common_inputs, stacked = iter(common), iter([jnp.stack(column) for column in zip(*own, strict=True)])
        results = mapped(*[next(common_inputs if is_shared else stacked) for is_shared in shared])
        return [[result[position] for result in results] for position in range(len(own))]

    avals = [jax.ShapeDtypeStruct(v.shape, v.aval.dtype, sharding=devices.sharding) for v in compute.inputs]
    common = [aval for aval, is_shared in zip(avals, shared, strict=True) if is_shared]
    own = [aval for aval, is_shared in zip(avals, shared, strict=True) if not is_shared]
    options = compiler_options(context)
    executables = {size: jax.jit(call_batch).lower(common, [own] * size).compile(options) for size in sizes}
    return BatchedCompute(tuple(shared), executables, unbatched)


@dataclass
class _Call:
    version: int
    inputs: Sequence[Any]
    stopwatch: Stopwatch
    arrived_at: float
    results: list[Any] | None = None


@dataclass
class Batcher:
    """Groups the replicas' calls of one `Compute` into batches. The thread of a batch's first call executes it."""

    control: RunControl
    compute: BatchedCompute
    max_size: int
    max_wait: float
    """Seconds that the first call of a batch waits for others."""
    sizes: Counter[int] = field(default_factory=Counter)
    """The number of batches executed, by their number of calls."""

    def __post_init__(self) -> None:
        self.calls: deque[_Call] = deque()
        self.condition = self.control.condition()
        self.executing = False

    def __call__(self, version: int, stopwatch: Stopwatch, inputs: Sequence[Any]) -> list[Any]:
        """Executes a call as part of a batch, and returns its results."""
        call = _Call(version, inputs, stopwatch, time.perf_counter())
        with self.condition:
            self._enqueue(call)
            self._wait_for_batch(call)
            if call.results is not None:
                return call.results
            batch = self._start_batch()
        try:
            results = self.compute([(member.version, member.inputs) for member in batch])
            for member, member_results in zip(batch, results, strict=True):
                member.results = member_results
            self.sizes[len(batch)] += 1
        finally:
            self._end_batch()
        assert call.results is not None
        return call.results

    def _enqueue(self, call: _Call) -> None:
        self.calls.append(call)
        if not self.executing:
            call.stopwatch.start()
        self.condition.notify_all()

    def _wait_for_batch(self, call: _Call) -> None:
        """Waits until the call has its results, or is the first call of a batch that should start now."""

        def is_first() -> bool:
            return not self.executing and bool(self.calls) and self.calls[0] is call

        def should_start() -> bool:
            return len(self.calls) >= self.max_size or time.perf_counter() >= call.arrived_at + self.max_wait

        # This wait has its own stopwatch: the call's stopwatch counts only the time in which no batch is executing.
        turn = Stopwatch(call.stopwatch.owner)
        event = "its turn in a batch of calls"
        self.control.wait_until(self.condition, lambda: call.results is not None or is_first(), turn, event)
        while call.results is None and not should_start():
            self.condition.wait(max(0.0, call.arrived_at + self.max_wait - time.perf_counter()))
            if self.control.stopping:
                return

    def _start_batch(self) -> list[_Call]:
        self.executing = True
        # While a batch executes, its role computes. Calls wait only while no batch executes.
        for waiting in self.calls:
            waiting.stopwatch.stop()
        return [self.calls.popleft() for _ in range(min(self.max_size, len(self.calls)))]

    def _end_batch(self) -> None:
        with self.condition:
            self.executing = False
            for waiting in self.calls:
                waiting.stopwatch.start()
            self.condition.notify_all()
