"""The local engine: every replica of every role is a thread of this process."""

import contextvars
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax

from weft.errors import WeftError
from weft.host import objects
from weft.layout.layout import Role
from weft.project.program import Compute, Program, walk
from weft.project.project import Projection
from weft.runtime.batching import BatchedCompute, compile_batched
from weft.runtime.channel import RunControl, Stopped
from weft.runtime.compile import compile_program
from weft.runtime.devices import Devices
from weft.runtime.executor import Executor
from weft.runtime.interpreter import ReplicaContext
from weft.runtime.meter import Meter
from weft.runtime.metrics_assembler import MetricsAssembler
from weft.runtime.scatter import copy_arrays, gather_state, scatter_state
from weft.runtime.snapshots import Snapshots
from weft.runtime.wiring import Wiring

IterationCallback = Callable[[Any, Any], None]
StatePredicate = Callable[[int], bool]


# Seconds that a run that ends leaves its threads: one that hangs in a role's own code must not hide what went wrong.
SHUTDOWN_SECONDS = 5.0


class RoleFailed(Exception):
    """A role's own error ended the run; the error itself is the cause."""


@dataclass
class LocalEngine:
    """A compiled projection, ready to run in this process."""

    projection: Projection
    barriers: bool = False
    limit: float = 600.0
    executables: dict[tuple[str, int], Mapping[Compute, Callable[..., Any]]] = field(init=False)
    coalesced: dict[str, Mapping[Compute, BatchedCompute]] = field(init=False)

    def __post_init__(self) -> None:
        self.executables, self.coalesced = {}, {}
        for role in self.projection.layout.roles:
            program = self.projection.programs[role.name]
            self.executables |= self.compile(program, role)
            self.coalesced[role.name] = self.coalesce(program, role) if role.batch > 1 else {}

    def compile(self, program: Program, role: Role) -> dict[tuple[str, int], Any]:
        """Executables by replica; the same for all on the same devices, unless the program asks which replica it is."""
        compiled: dict[tuple[str, int], Any] = {}
        known: dict[Any, Any] = {}
        for index in range(role.replicas):
            devices = Devices.of(self.projection.layout, role, index)
            key = (devices, index if program.depends_on_replica_index else 0)
            if key not in known:
                known[key] = compile_program(program, self.context(role, index), devices)
            compiled[role.name, index] = known[key]
        return compiled

    def coalesce(self, program: Program, role: Role) -> dict[Compute, BatchedCompute]:
        """The runs in inner loops, for the calls of several replicas at once."""
        if program.depends_on_replica_index or role.devices > 1 or len(role.on) > 1:
            raise WeftError(
                f"the calls of {role.name} are to be made as one, but its replicas differ: they ask which one they "
                "are, or run on several devices"
            )
        runs = [step for step, times in walk(program.steps) if isinstance(step, Compute) and times > 1]
        context, devices = self.context(role, 0), Devices.of(self.projection.layout, role, 0)
        shared = self.projection.views[role.name].demand.hints.stale_reads.get(role.name, frozenset())
        alone = self.executables[role.name, 0]
        return {
            run: compile_batched(
                run, context, devices, [value in shared for value in run.inputs], role.batch, alone[run]
            )
            for run in runs
        }

    def context(self, role: Role, index: int) -> ReplicaContext:
        return ReplicaContext(
            index, role.instances, "devices" if role.devices > 1 else None, role.devices, self.barriers
        )

    def run(
        self,
        state: Any,
        times: int,
        watch: IterationCallback = lambda metrics, state: None,
        due: StatePredicate = lambda number: False,
        meter: Meter | None = None,
    ) -> Any:
        """The state after going through the programs `times` times.

        `watch` gets the metrics of each time, and the state after it if its number, from 1, is `due`: else None. Where
        lanes go at their own pace, there is no state of one moment: then it gets one that came together soon after.
        """
        if not times:
            return state
        session = ThreadedRun(self, times, watch, due)
        if meter is not None:
            meter.follow(session.wiring.parts())
        return session.run(state)


@dataclass
class ThreadedRun:
    """One run: its threads, what they come to, and errors."""

    engine: LocalEngine
    times: int
    watch: IterationCallback
    due: StatePredicate

    def __post_init__(self) -> None:
        engine = self.engine
        self.projection, self.wait = engine.projection, RunControl(engine.limit)
        self.wiring = Wiring(self.projection, self.wait, self.times, engine.executables, engine.coalesced)
        self.ledger = MetricsAssembler(self.wait, self.projection)
        here = frozenset((strand.program.role, strand.index) for strand in self.wiring.strands)
        self.snapshots = Snapshots(here, not self.projection.layout.lanes, self.due)
        self.failure: tuple[str, BaseException] | None = None

    def run(self, state: Any) -> Any:
        shares = scatter_state(self.projection, state)
        self.wiring.fill_registers(jax.tree.leaves(state))
        threads = [
            threading.Thread(
                # Threads belong to the run that starts them: host code finds its objects there.
                target=contextvars.copy_context().run,
                args=(self.work, strand, shares[strand.program.role, strand.index]),
                name=strand.name,
                daemon=True,
            )
            for strand in self.wiring.strands
        ]
        try:
            for thread in threads:
                thread.start()
            return self.follow(threads)
        finally:
            self.wait.stop()
            end = time.monotonic() + SHUTDOWN_SECONDS
            for thread in threads:
                if thread.is_alive():
                    thread.join(max(0.0, end - time.monotonic()))

    def work(self, strand: Executor, state: dict[int, Any]) -> None:
        """A thread's life: iterate, report, and hand the state on to the next iteration."""
        role, here = self.projection.layout.role(strand.program.role), (strand.program.role, strand.index)
        pace, clock = self.wiring.pace(role, strand), strand.clocks["report"]
        number, outputs = 0, {}
        strand.life.start()
        try:
            while pace.begin(state):
                number += 1
                outputs = strand.iterate(state)
                pace.end(outputs)
                # What is handed on may be overwritten by the next iteration, so what is asked for is copied.
                self.snapshots.offer(here, number, partial(copy_arrays, outputs))
                self.ledger.report(role, strand.index, number, outputs, clock, strand.lags)
                state = {leaf: outputs.get(leaf) for leaf in strand.program.inputs}
            self.snapshots.ended[here] = outputs
        except Stopped:
            pass
        except BaseException as error:
            self.failure = self.failure or (strand.name, error)
            self.wait.stop()
        finally:
            strand.life.stop()

    def follow(self, threads: list[threading.Thread]) -> Any:
        """Pass on the rows as they come; the state at the end."""
        for number in range(1, self.times):
            metrics = self.ledger.next(self.refuse_failure)
            parts = self.snapshots.take(number)
            self.watch(metrics, parts and gather_state(self.projection, parts))
        metrics = self.ledger.next(self.refuse_failure)
        while any(thread.is_alive() for thread in threads) and not self.failure:
            threads = [thread for thread in threads if thread.is_alive()]
            threads[0].join(0.1)
        self.refuse_failure()
        state = gather_state(self.projection, self.snapshots.ended)
        self.watch(metrics, state if self.due(self.times) else None)
        return state

    def refuse_failure(self) -> None:
        objects().refuse_overdue()
        if self.failure:
            who, error = self.failure
            if isinstance(error, WeftError):
                # Says itself what is wrong: with a user's environment, say.
                raise type(error)(f"role {who}: {error}") from error
            raise RoleFailed(f"role {who} failed: {type(error).__name__}: {error}") from error
