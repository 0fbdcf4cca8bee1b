"""Calls of many replicas made as one: central inference.

Replicas of a role run the same compiled runs, each with its own inputs. Where a layout allows it, a call waits for
others of the same run, and they go as one: the run is mapped over the calls, so that ten small products become one.
Inputs that come from a register (parameters) are not multiplied: the newest that any of the calls holds serves all. A
batch goes when it is full or when its first call has waited long enough; it is filled up to the next of a few sizes,
for which there is a compiled run each.
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
    """A run compiled for several calls at once: by size, a function of what calls share and of what each has."""

    shared: tuple[bool, ...]
    """For every input of the run."""
    executables: dict[int, Executable]
    alone: Callable[..., list[Any]] | None = None
    """The run itself, for a call that nobody joined."""

    def __call__(self, calls: Sequence[tuple[int, Sequence[Any]]]) -> list[list[Any]]:
        """The results of some calls, each a version and its inputs."""
        if len(calls) == 1 and self.alone is not None:
            return [self.alone(*calls[0][1])]
        size = min(size for size in self.executables if size >= len(calls))
        newest = max(calls, key=lambda call: call[0])[1]
        common = [value for value, shared in zip(newest, self.shared, strict=True) if shared]
        own = [[value for value, shared in zip(inputs, self.shared, strict=True) if not shared] for _, inputs in calls]
        own += own[-1:] * (size - len(calls))
        return self.executables[size](common, own)[: len(calls)]


def compile_batched(
    run: Compute,
    context: ReplicaContext,
    devices: Devices,
    shared: Sequence[bool],
    most: int,
    alone: Callable[..., list[Any]] | None = None,
) -> BatchedCompute:
    """A run for 1, 2, 4 ... calls, and for `most`; `alone` is there for 1 already."""
    least = 1 if alone is None else 2
    sizes = sorted({min(2**power, most) for power in range(most.bit_length() + 1) if 2**power >= least})
    function = compute_function(run, context)
    mapped = jax.vmap(function, in_axes=tuple(None if same else 0 for same in shared))

    def together(common: Sequence[Any], own: Sequence[Sequence[Any]]) -> list[list[Any]]:
        same, stacked = iter(common), iter([jnp.stack(each) for each in zip(*own, strict=True)])
        results = mapped(*[next(same if is_shared else stacked) for is_shared in shared])
        return [[result[number] for result in results] for number in range(len(own))]

    avals = [jax.ShapeDtypeStruct(v.shape, v.aval.dtype, sharding=devices.sharding) for v in run.inputs]
    common = [aval for aval, same in zip(avals, shared, strict=True) if same]
    own = [aval for aval, same in zip(avals, shared, strict=True) if not same]
    options = compiler_options(context)
    executables = {size: jax.jit(together).lower(common, [own] * size).compile(options) for size in sizes}
    return BatchedCompute(tuple(shared), executables, alone)


@dataclass
class _Call:
    version: int
    inputs: Sequence[Any]
    clock: Stopwatch
    came: float
    results: list[Any] | None = None


@dataclass
class Batcher:
    """Where the replicas of a role meet for the calls of one run: whoever is first makes the call for all."""

    wait: RunControl
    run: BatchedCompute
    most: int
    seconds: float
    sizes: Counter[int] = field(default_factory=Counter)
    """How often so many calls were made as one."""

    def __post_init__(self) -> None:
        self.calls: deque[_Call] = deque()
        self.condition = self.wait.condition()
        self.busy = False

    def __call__(self, version: int, clock: Stopwatch, inputs: Sequence[Any]) -> list[Any]:
        call = _Call(version, inputs, clock, time.perf_counter())
        with self.condition:
            self.calls.append(call)
            if not self.busy:
                clock.start()
            self.condition.notify_all()
            self.gather_state(call)
            if call.results is not None:
                return call.results
            self.busy = True
            # While a batch is made its role computes, all replicas of it: what they wait for is only more calls.
            for waiting in self.calls:
                waiting.clock.stop()
            batch = [self.calls.popleft() for _ in range(min(self.most, len(self.calls)))]
        try:
            for made, results in zip(batch, self.run([(made.version, made.inputs) for made in batch]), strict=True):
                made.results = results
            self.sizes[len(batch)] += 1
        finally:
            with self.condition:
                self.busy = False
                for waiting in self.calls:
                    waiting.clock.start()
                self.condition.notify_all()
        assert call.results is not None
        return call.results

    def gather_state(self, call: _Call) -> None:
        """Wait until a call is answered, or is the first of a batch that should go now."""

        def first() -> bool:
            return not self.busy and bool(self.calls) and self.calls[0] is call

        def due() -> bool:
            return len(self.calls) >= self.most or time.perf_counter() >= call.came + self.seconds

        turn, what = Stopwatch(call.clock.who), "its turn in a batch of calls"
        self.wait.until(self.condition, lambda: call.results is not None or first(), turn, what)
        while call.results is None and not due():
            self.condition.wait(max(0.0, call.came + self.seconds - time.perf_counter()))
            if self.wait.stopping:
                return
