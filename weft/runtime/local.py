"""The local engine: every replica of every role is a thread of this process."""

import contextvars
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import jax

from weft.errors import WeftError
from weft.host import objects
from weft.layout.layout import Role
from weft.project.program import Merge, Program, Recv, Run, Send, walk
from weft.project.project import Projection
from weft.runtime.channel import Meeting, Stopped, Stream, Wait
from weft.runtime.coalesce import Coalesced, Together, compile_coalesced
from weft.runtime.compile import compile_runs
from weft.runtime.devices import Devices
from weft.runtime.evaluate import MERGES, Context
from weft.runtime.lanes import Lanes
from weft.runtime.ledger import Ledger, reports_per_row
from weft.runtime.meter import Meter, Parts
from weft.runtime.pace import Arriving, InLane, InStep, Pace, Place, Taking
from weft.runtime.shares import copied, gather, scatter
from weft.runtime.snapshots import Snapshots
from weft.runtime.strand import End, Strand

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
    coalesced: dict[str, Mapping[Run, Coalesced]] = field(init=False)

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
            key = (devices, index if program.asks_replica else 0)
            if key not in known:
                known[key] = compile_runs(program, self.context(role, index), devices)
            compiled[role.name, index] = known[key]
        return compiled

    def coalesce(self, program: Program, role: Role) -> dict[Run, Coalesced]:
        """The runs in inner loops, for the calls of several replicas at once."""
        if program.asks_replica or role.devices > 1 or len(role.on) > 1:
            raise WeftError(
                f"the calls of {role.name} are to be made as one, but its replicas differ: they ask which one they "
                "are, or run on several devices"
            )
        runs = [step for step, times in walk(program.steps) if isinstance(step, Run) and times > 1]
        context, devices = self.context(role, 0), Devices.of(self.projection.layout, role, 0)
        shared = self.projection.views[role.name].needs.terms.relaxed.get(role.name, frozenset())
        alone = self.executables[role.name, 0]
        return {
            run: compile_coalesced(
                run, context, devices, [value in shared for value in run.inputs], role.batch, alone[run]
            )
            for run in runs
        }

    def context(self, role: Role, index: int) -> Context:
        return Context(index, role.copies, "devices" if role.devices > 1 else None, role.devices, self.barriers)

    def run(
        self,
        state: Any,
        times: int,
        watch: Watch = lambda metrics, state: None,
        due: Due = lambda number: False,
        meter: Meter | None = None,
    ) -> Any:
        """The state after going through the programs `times` times.

        `watch` gets the metrics of each time, and the state after it if its number, from 1, is `due`: else None. Where
        lanes go at their own pace, there is no state of one moment: then it gets one that came together soon after.
        """
        if not times:
            return state
        session = Session(self, times, watch, due)
        if meter is not None:
            meter.follow(session.parts())
        return session.run(state)


@dataclass
class Session:
    """One run: its threads, channels and errors."""

    engine: Local
    times: int
    watch: Watch
    due: Due

    def __post_init__(self) -> None:
        self.projection = self.engine.projection
        self.layout = self.projection.layout
        self.wait = Wait(self.engine.limit)
        self.streams: dict[tuple[str, int, int], Stream] = {}
        self.meetings: dict[str, Meeting] = {}
        self.together: dict[Run, Together] = {}
        self.lanes = self.make_lanes()
        self.places: dict[tuple[str, int], Place] = {}
        self.strands = [self.strand(role, index) for role in self.layout.roles for index in range(role.replicas)]
        self.ledger = Ledger(self.wait, self.projection)
        here = frozenset((strand.program.role, strand.index) for strand in self.strands)
        self.snapshots = Snapshots(here, not self.layout.lanes, self.due)
        self.failure: tuple[str, BaseException] | None = None

    def run(self, state: Any) -> Any:
        shares = scatter(self.projection, state)
        self.fill_registers(jax.tree.leaves(state))
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
            return self.follow(threads)
        finally:
            self.wait.stop()
            end = time.monotonic() + PATIENCE
            for thread in threads:
                if thread.is_alive():
                    thread.join(max(0.0, end - time.monotonic()))

    def work(self, strand: Strand, state: dict[int, Any]) -> None:
        """A thread's life: iterate, report, and hand the state on to the next iteration."""
        role, here = self.layout.role(strand.program.role), (strand.program.role, strand.index)
        pace, clock = self.pace(role, strand), strand.clocks["report"]
        number, outputs = 0, {}
        strand.life.start()
        try:
            while pace.begin(state):
                number += 1
                outputs = strand.iterate(state)
                pace.end(outputs)
                # What is handed on may be overwritten by the next iteration, so what is asked for is copied.
                self.snapshots.offer(here, number, partial(copied, outputs))
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
            self.watch(metrics, parts and gather(self.projection, parts))
        metrics = self.ledger.next(self.refuse_failure)
        while any(thread.is_alive() for thread in threads) and not self.failure:
            threads = [thread for thread in threads if thread.is_alive()]
            threads[0].join(0.1)
        self.refuse_failure()
        state = gather(self.projection, self.snapshots.ended)
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

    def parts(self) -> Parts:
        """What counts as it goes."""
        return Parts(self.strands, [*self.streams.values()], [*self.meetings.values()], self.lanes, self.together)

    def strand(self, role: Role, index: int) -> Strand:
        program = self.projection.programs[role.name]
        steps = [step for step, _ in walk(program.steps)]
        strand = Strand(
            program,
            index,
            dict(self.engine.executables[role.name, index]),
            {step: self.outgoing(role, index, step) for step in steps if isinstance(step, Send)},
            {step: self.incoming(role, index, step) for step in steps if isinstance(step, Recv)},
            {step: self.meeting(role, step) for step in steps if isinstance(step, Merge)},
            Devices.of(self.projection.layout, role, index),
            served=1 if role.take is None else role.of,
        )
        for run, coalesced in self.engine.coalesced[role.name].items():
            if run not in self.together:
                self.together[run] = Together(self.wait, coalesced, role.batch, role.wait)
            strand.executables[run] = self.calling(self.together[run], role, strand)
        return strand

    def calling(self, together: Together, role: Role, strand: Strand) -> Callable[..., Any]:
        """A strand's way to call a run together with others."""
        place, clock = self.place(role, strand.index), strand.clocks["batch"]
        lane = place.lanes.lanes[place.index]
        return lambda *inputs: together(lane.version, clock, inputs)

    def pace(self, role: Role, strand: Strand) -> Pace:
        if not self.layout.lanes:
            return InStep(self.times)
        if role.take is not None:
            times = self.times * reports_per_row(role) // role.replicas
            return Taking(self.lanes[strand.index], times, strand)
        return InLane(self.place(role, strand.index), strand, strand.clocks["begin"])

    def make_lanes(self) -> list[Lanes]:
        """The lanes of each replica of the role that takes."""
        taker = self.layout.taker
        if taker is None:
            return []
        first = next(role.name for role in self.layout.roles if role is not taker)
        return [
            Lanes(
                self.wait,
                f"{taker.name}[{index}]",
                tuple(f"{first}[{index * taker.of + lane}]" for lane in range(taker.of)),
                taker.take or taker.of,
                self.times * taker.of,
                self.layout.max_lag,
            )
            for index in range(taker.replicas)
        ]

    def place(self, role: Role, index: int) -> Place:
        """A replica's place in the lane that it belongs to."""
        lane = index * self.layout.lanes // role.replicas
        served = self.layout.lanes // len(self.lanes)
        return self.places.setdefault((role.name, index), Place(self.lanes[lane // served], lane % served))

    def fill_registers(self, leaves: list[Any]) -> None:
        """Version 0 is the state before the run."""
        if self.layout.taker is not None:
            writes = sorted(self.projection.programs[self.layout.taker.name].writes)
            value = dict(zip(writes, copied([leaves[leaf] for leaf in writes]), strict=True))
            for lanes in self.lanes:
                lanes.value = value

    def outgoing(self, role: Role, index: int, step: Send) -> tuple[End, ...]:
        to = self.layout.role(step.to)
        return tuple(
            self.end(role, index, to, self.stream(step.message, (role, index), (to, other)))
            for other in partners(index, role.replicas, to.replicas)
        )

    def incoming(self, role: Role, index: int, step: Recv) -> tuple[End, ...]:
        source = self.layout.role(step.source)
        return tuple(
            self.end(role, index, source, self.stream(step.message, (source, other), (role, index)))
            for other in partners(index, role.replicas, source.replicas)
        )

    def end(self, role: Role, index: int, other: Role, stream: Stream) -> End:
        """A replica's end of a stream: for a lane, to turn to whoever takes is to arrive."""
        return stream if other.take is None else Arriving(stream, self.place(role, index))

    def stream(self, message: str, source: tuple[Role, int], dest: tuple[Role, int]) -> Stream:
        key = (message, source[1], dest[1])
        if key not in self.streams:
            one, other = (f"{role.name}[{index}]" for role, index in (source, dest))
            devices = Devices.of(self.layout, *dest)
            place = devices if devices.places and devices.count == 1 else None
            self.streams[key] = Stream(self.wait, one, other, message.partition(":")[2], place=place)
        return self.streams[key]

    def meeting(self, role: Role, step: Merge) -> Meeting:
        if step.message not in self.meetings:
            names = tuple(f"{role.name}[{index}]" for index in range(role.replicas))
            self.meetings[step.message] = Meeting(self.wait, step.message, names, merging(step.operation))
        return self.meetings[step.message]


def partners(index: int, mine: int, others: int) -> range:
    """The replicas of another role that replica `index` of `mine` exchanges with."""
    if others >= mine:
        fan = others // mine
        return range(index * fan, (index + 1) * fan)
    return range(index // (mine // others), index // (mine // others) + 1)


@cache
def merging(operation: str) -> Callable[[list[Any]], Any]:
    """A compiled function that merges what replicas bring."""
    return jax.jit(lambda values: jax.tree.map(lambda *leaves: MERGES[operation](leaves), *values))
