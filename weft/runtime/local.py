"""The local engine: every replica of every role is a thread of this process."""

import contextvars
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from weft.errors import WeftError
from weft.host import objects
from weft.project.program import Merge, Program, Recv, Run, Send, walk
from weft.project.project import Projection
from weft.runtime.channel import Meeting, Stopped, Stream, Wait
from weft.runtime.compile import compile_runs
from weft.runtime.devices import Devices
from weft.runtime.evaluate import Context
from weft.runtime.shares import copied, gather, gather_metrics, scatter
from weft.runtime.strand import Strand

Watch = Callable[[Any, Any], None]
Due = Callable[[int], bool]


# Seconds that a run that ends leaves its threads: one that hangs in a role's own code must not hide what went wrong.
PATIENCE = 5.0


class RoleFailed(Exception):
    """A role's own error ended the run; the error itself is the cause."""


@dataclass
class Local:
    """A compiled projection, ready to run in this process."""

    projection: Projection
    barriers: bool = False
    limit: float = 600.0
    executables: dict[tuple[str, int], Mapping[Run, Callable[..., Any]]] = field(init=False)

    def __post_init__(self) -> None:
        self.executables = {}
        for role in self.projection.layout.roles:
            program = self.projection.programs[role.name]
            if role.devices > 1 and program.exchanges:
                raise WeftError(
                    f"role {role.name} spans {role.devices} devices and exchanges values with others: "
                    "give it replicas instead"
                )
            self.executables |= self.compile(program, role)

    def compile(self, program: Program, role: Any) -> dict[tuple[str, int], Any]:
        """Executables by replica; they are one and the same unless the program asks which replica it is."""
        axis = "devices" if role.devices > 1 else None
        compiled: dict[tuple[str, int], Any] = {}
        for index in range(role.replicas):
            context = Context(index, role.shares, axis, role.devices, self.barriers)
            shared = index and not program.asks_replica
            compiled[role.name, index] = compiled[role.name, 0] if shared else compile_runs(program, context)
        return compiled

    def run(
        self,
        state: Any,
        times: int,
        watch: Watch = lambda metrics, state: None,
        due: Due = lambda number: False,
    ) -> Any:
        """The state after going through the programs `times` times.

        `watch` gets the metrics of each time, and the state after it if its number, from 1, is `due`: else None.
        """
        return _Session(self, times, watch, due).run(state) if times else state


@dataclass
class _Session:
    """One run: its threads, streams and errors."""

    engine: Local
    times: int
    watch: Watch
    due: Due

    def __post_init__(self) -> None:
        self.projection = self.engine.projection
        self.wait = Wait(self.engine.limit)
        self.streams: dict[tuple[str, int, int], Stream] = {}
        self.meetings: dict[str, Meeting] = {}
        self.strands = [
            self.strand(role, index) for role in self.projection.layout.roles for index in range(role.replicas)
        ]
        # Bounded, so that a strand cannot run ahead of whoever follows it.
        self.reports = {strand.name: queue.Queue(maxsize=2) for strand in self.strands}
        self.failure: tuple[str, BaseException] | None = None

    def run(self, state: Any) -> Any:
        shares = scatter(self.projection, state)
        threads = [
            threading.Thread(
                # Threads belong to the run that starts them: host code finds its objects there.
                target=contextvars.copy_context().run,
                args=(self.work, strand, shares[strand.program.role, strand.index]),
                name=strand.name,
                daemon=True,
            )
            for strand in self.strands
        ]
        try:
            for thread in threads:
                thread.start()
            ends = [self.collect(number) for number in range(1, self.times + 1)][-1]
        finally:
            self.wait.stop()
            end = time.monotonic() + PATIENCE
            for thread in threads:
                if thread.is_alive():
                    thread.join(max(0.0, end - time.monotonic()))
        return gather(self.projection, ends)

    def work(self, strand: Strand, state: dict[int, Any]) -> None:
        """A thread's life: iterate, report, and hand the state on to the next iteration."""
        try:
            for number in range(1, self.times + 1):
                outputs = strand.iterate(state)
                state = {leaf: outputs[leaf] for leaf in strand.program.inputs}
                # What is handed on may be overwritten by the next iteration, so what is asked for is copied.
                self.report(strand.name, copied(outputs) if self.due(number) else outputs)
        except Stopped:
            pass
        except BaseException as error:
            self.failure = self.failure or (strand.name, error)
            self.wait.stop()

    def report(self, name: str, outputs: dict[int, Any]) -> None:
        while not self.wait.stopping:
            try:
                return self.reports[name].put(outputs, timeout=0.1)
            except queue.Full:
                continue
        raise Stopped

    def collect(self, number: int) -> dict[tuple[str, int], dict[int, Any]]:
        """The outputs of every strand for one iteration of the programs; metrics go to the watcher."""
        outputs = {(strand.program.role, strand.index): self.take(strand.name) for strand in self.strands}
        state = gather(self.projection, outputs) if self.due(number) else None
        self.watch(gather_metrics(self.projection, outputs), state)
        return outputs

    def take(self, name: str) -> dict[int, Any]:
        while True:
            try:
                return self.reports[name].get(timeout=0.1)
            except queue.Empty:
                objects().refuse_overdue()
                if self.failure:
                    who, error = self.failure
                    if isinstance(error, WeftError):
                        # Says itself what is wrong: with a user's environment, say.
                        raise type(error)(f"role {who}: {error}") from error
                    raise RoleFailed(f"role {who} failed: {type(error).__name__}: {error}") from error

    def strand(self, role: Any, index: int) -> Strand:
        program = self.projection.programs[role.name]
        steps = [step for step, _ in walk(program.steps)]
        return Strand(
            program,
            index,
            self.engine.executables[role.name, index],
            {step: self.outgoing(role, index, step) for step in steps if isinstance(step, Send)},
            {step: self.incoming(role, index, step) for step in steps if isinstance(step, Recv)},
            {step: self.meeting(role, step) for step in steps if isinstance(step, Merge)},
            Devices(role.devices),
        )

    def outgoing(self, role: Any, index: int, step: Send) -> tuple[Stream, ...]:
        others = self.projection.layout.role(step.to).replicas
        return tuple(
            self.stream(step.message, (role.name, index), (step.to, other))
            for other in partners(index, role.replicas, others)
        )

    def incoming(self, role: Any, index: int, step: Recv) -> tuple[Stream, ...]:
        others = self.projection.layout.role(step.source).replicas
        return tuple(
            self.stream(step.message, (step.source, other), (role.name, index))
            for other in partners(index, role.replicas, others)
        )

    def stream(self, message: str, source: tuple[str, int], dest: tuple[str, int]) -> Stream:
        key = (message, source[1], dest[1])
        if key not in self.streams:
            label = message.partition(":")[2]
            self.streams[key] = Stream(self.wait, f"{source[0]}[{source[1]}]", f"{dest[0]}[{dest[1]}]", label)
        return self.streams[key]

    def meeting(self, role: Any, step: Merge) -> Meeting:
        if step.message not in self.meetings:
            self.meetings[step.message] = Meeting(self.wait, step.message, role.replicas, MERGES[step.operation])
        return self.meetings[step.message]


def partners(index: int, mine: int, others: int) -> range:
    """The replicas of another role that replica `index` of `mine` exchanges with."""
    if others >= mine:
        fan = others // mine
        return range(index * fan, (index + 1) * fan)
    return range(index // (mine // others), index // (mine // others) + 1)


@jax.jit
def _sum(values: list[Any]) -> Any:
    return jax.tree.map(lambda *leaves: sum(leaves[1:], start=leaves[0]), *values)


@jax.jit
def _mean(values: list[Any]) -> Any:
    return jax.tree.map(lambda leaf: leaf / jnp.asarray(len(values), leaf.dtype), _sum(values))


MERGES: dict[str, Callable[[list[Any]], Any]] = {"mean": _mean, "sum": _sum}
