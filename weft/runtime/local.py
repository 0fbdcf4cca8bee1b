"""The local engine: every replica of every role runs on its own thread of this process."""

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
from weft.runtime.scatter import LeafValues, ReplicaId, copy_arrays, gather_state, scatter_state
from weft.runtime.snapshots import Snapshots
from weft.runtime.wiring import Wiring

PassCallback = Callable[[Any, Any], None]
"""Called after every pass with its metrics, and with the state if it is due, else None."""
StateIsDue = Callable[[int], bool]
"""Whether the callback gets the state of a pass, by number from 1."""

# Seconds to wait for threads when a run ends. A thread hung in user code must not hide the original error.
SHUTDOWN_SECONDS = 5.0


class RoleFailed(Exception):
    """A role's code raised an error, which ended the run. The error is the cause of this exception."""


@dataclass
class LocalEngine:
    """A compiled projection, ready to run in this process."""

    projection: Projection
    barriers: bool = False
    """Whether each fragment is enclosed in optimisation barriers."""
    stuck_after: float = 600.0
    """Seconds that a thread may wait for another before the run fails."""
    executables: dict[ReplicaId, Mapping[Compute, Callable[..., Any]]] = field(init=False)
    batched: dict[str, Mapping[Compute, BatchedCompute]] = field(init=False)
    """By role, the executables for batched calls."""

    def __post_init__(self) -> None:
        self.executables, self.batched = {}, {}
        for role in self.projection.layout.roles:
            program = self.projection.programs[role.name]
            self.executables |= self.compile(program, role)
            self.batched[role.name] = self.compile_batched(program, role) if role.batch > 1 else {}

    def compile(self, program: Program, role: Role) -> dict[ReplicaId, Any]:
        """Compiles a role's program. Replicas on the same devices share executables."""
        compiled: dict[Devices, Any] = {}
        replicas = {index: Devices.of(self.projection.layout, role, index) for index in range(role.replicas)}
        for devices in replicas.values():
            if devices not in compiled:
                compiled[devices] = compile_program(program, self.context(role), devices)
        return {(role.name, index): compiled[devices] for index, devices in replicas.items()}

    def compile_batched(self, program: Program, role: Role) -> dict[Compute, BatchedCompute]:
        """Compiles the instructions in a role's inner loops for batches of calls from several replicas."""
        if role.devices > 1 or len(role.on) > 1:
            raise WeftError(
                f"role {role.name} has batch={role.batch}, but its calls cannot be batched, because its replicas run "
                "on several devices: set batch=1, or give the role one device"
            )
        computes = [step for step, times in walk(program.steps) if isinstance(step, Compute) and times > 1]
        context, devices = self.context(role), Devices.of(self.projection.layout, role, 0)
        from_register = self.projection.views[role.name].demand.hints.stale_reads.get(role.name, frozenset())
        unbatched = self.executables[role.name, 0]
        return {
            compute: compile_batched(
                compute,
                context,
                devices,
                [value in from_register for value in compute.inputs],
                role.batch,
                unbatched[compute],
            )
            for compute in computes
        }

    def context(self, role: Role) -> ReplicaContext:
        return ReplicaContext(
            count=role.instances,
            axis="devices" if role.devices > 1 else None,
            devices=role.devices,
            barriers=self.barriers,
            merges=self.projection.merges.get(role.name, {}),
        )

    def run(
        self,
        state: Any,
        passes: int,
        on_pass: PassCallback = lambda metrics, state: None,
        state_is_due: StateIsDue = lambda number: False,
        meter: Meter | None = None,
    ) -> Any:
        """Executes every program `passes` times and returns the final state.

        A pass is one iteration of the algorithm, or several if the projection's `length` is larger than 1. Lanes have
        no common iteration. With lanes, the callback gets a state that was complete soon after it was due.
        """
        if not passes:
            return state
        threads = ThreadedRun(self, passes, on_pass, state_is_due)
        if meter is not None:
            meter.attach(threads.wiring.instruments())
        return threads.run(state)


@dataclass
class ThreadedRun:
    """Runs a projection once, with one thread for each replica."""

    engine: LocalEngine
    passes: int
    on_pass: PassCallback
    state_is_due: StateIsDue

    def __post_init__(self) -> None:
        engine = self.engine
        self.projection, self.control = engine.projection, RunControl(engine.stuck_after)
        self.wiring = Wiring(self.projection, self.control, self.passes, engine.executables, engine.batched)
        self.metrics = MetricsAssembler(self.control, self.projection)
        replicas = frozenset((executor.program.role, executor.index) for executor in self.wiring.executors)
        self.snapshots = Snapshots(replicas, not self.projection.layout.lanes, self.state_is_due)
        # The first replica that failed, and its error.
        self.failure: tuple[str, BaseException] | None = None

    def run(self, state: Any) -> Any:
        """Starts the threads, passes on their metrics, and returns the final state."""
        initial = scatter_state(self.projection, state)
        self.wiring.publish_initial_state(jax.tree.leaves(state))
        threads = [
            self.make_thread(executor, initial[executor.program.role, executor.index])
            for executor in self.wiring.executors
        ]
        try:
            for thread in threads:
                thread.start()
            return self.follow_passes(threads)
        finally:
            self.control.stop()
            self.join(threads)

    def run_replica(self, executor: Executor, state: LeafValues) -> None:
        """The main loop of a replica's thread."""
        role, replica = self.projection.layout.role(executor.program.role), (executor.program.role, executor.index)
        schedule, report_wait = self.wiring.schedule(role, executor), executor.waits["report"]
        number, outputs = 0, {}
        executor.lifetime.start()
        try:
            while schedule.begin(state):
                number += 1
                outputs = executor.run_iteration(state)
                schedule.end(outputs)
                # The next iteration may overwrite the outputs, so a snapshot copies them.
                self.snapshots.offer(replica, number, partial(copy_arrays, outputs))
                self.metrics.report(role, executor.index, number, outputs, report_wait, executor.lags)
                state = {leaf: outputs.get(leaf) for leaf in executor.program.inputs}
            self.snapshots.final[replica] = outputs
        except Stopped:
            pass
        except BaseException as error:
            self.failure = self.failure or (executor.name, error)
            self.control.stop()
        finally:
            executor.lifetime.stop()

    def follow_passes(self, threads: list[threading.Thread]) -> Any:
        """Calls the callback after every pass, in the main thread. Returns the final state."""
        for number in range(1, self.passes):
            metrics = self.metrics.wait_for_next(self.raise_failure)
            parts = self.snapshots.collect(number)
            self.on_pass(metrics, parts and gather_state(self.projection, parts))
        metrics = self.metrics.wait_for_next(self.raise_failure)
        self.wait_for_end(threads)
        state = gather_state(self.projection, self.snapshots.final)
        self.on_pass(metrics, state if self.state_is_due(self.passes) else None)
        return state

    def wait_for_end(self, threads: list[threading.Thread]) -> None:
        while any(thread.is_alive() for thread in threads) and not self.failure:
            threads = [thread for thread in threads if thread.is_alive()]
            threads[0].join(0.1)
        self.raise_failure()

    def make_thread(self, executor: Executor, state: LeafValues) -> threading.Thread:
        # The thread runs in the caller's context, where host code looks up its objects.
        context = contextvars.copy_context()
        return threading.Thread(
            target=context.run, args=(self.run_replica, executor, state), name=executor.name, daemon=True
        )

    def join(self, threads: list[threading.Thread]) -> None:
        """Waits for the threads to end, for `SHUTDOWN_SECONDS` in all."""
        end = time.monotonic() + SHUTDOWN_SECONDS
        for thread in threads:
            if thread.is_alive():
                thread.join(max(0.0, end - time.monotonic()))

    def raise_failure(self) -> None:
        """Raises the error of a replica that failed, or of a host call that takes too long."""
        objects().raise_overdue()
        if self.failure:
            replica, error = self.failure
            if isinstance(error, WeftError):
                # The message is written for users (a fault of their environment, for example), so its type is kept.
                raise type(error)(f"role {replica}: {error}") from error
            raise RoleFailed(f"role {replica} failed: {type(error).__name__}: {error}") from error
