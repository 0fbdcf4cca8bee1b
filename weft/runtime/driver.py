"""From an algorithm, an environment and a layout to a trained state."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from weft.algorithm import Algorithm, Phase, name_of
from weft.envs.world import EnvSpec, World
from weft.errors import WeftError, unknown
from weft.graph.trace import record_reads, refuse_unread_settings
from weft.host import own_objects
from weft.layout import catalogue
from weft.layout.layout import Layout
from weft.metrics import Mean
from weft.project.project import Projection, project
from weft.report.returns import Returns
from weft.report.system import Lag, System
from weft.report.update import Observer, StateObserver, Update
from weft.runtime.devices import disable_async_cpu_dispatch
from weft.runtime.jit_with_host import jit_with_host
from weft.runtime.local import LocalEngine
from weft.runtime.meter import Meter
from weft.settings import DEFAULT_STEPS

ENGINES = {"local": LocalEngine}

Part = tuple[Projection, int]

# Seconds between readings of where the time goes.
READING = 1.0


class Diverged(WeftError):
    """A metric or a leaf of the state is not a number any more."""


@dataclass(frozen=True)
class Result:
    """What a run came to; `state` is the whole state at its end."""

    algo: str
    env: str
    layout: str
    engine: str
    seed: int
    steps: int
    iterations: int
    wall_s: float
    compile_s: float
    steps_per_s: float
    episodes: int
    return_mean: float | None
    state: Any = field(repr=False)
    episodes_dropped: int = 0
    """Episodes given up because their environment failed and was started again."""
    evaluation: float | None = None
    """The mean return of the last evaluation, if there were any."""
    system: System | None = field(default=None, repr=False)
    """Where the time went, if there were several roles or replicas."""
    out: Path | None = None
    """The run's folder, if it has one."""

    @property
    def lag(self) -> Lag | None:
        """How late the work was that was taken, if the layout has lanes."""
        return self.system and self.system.lag


@dataclass(frozen=True)
class Plan:
    """A run that was found possible: everything is traced and projected, nothing is compiled."""

    algo: Algorithm
    env_of: World
    layout: Layout

    @classmethod
    def of(cls, algo: Algorithm, env: EnvSpec, layout: Layout | str | None) -> "Plan":
        """Resolve names; see `World.of` for what `env` may be."""
        disable_async_cpu_dispatch()
        if isinstance(layout, str) or layout is None:
            layout = catalogue.parse(layout or "fused")
        return cls(algo.settle(asynchronous=bool(layout.lanes)), World.of(env), layout)

    def project(self, length: int = 1, phase: Phase = "step") -> Projection:
        """The projection of `length` iterations, refused if a setting was given that nothing reads."""
        algo, reads = record_reads(self.algo)
        projection = project(algo, self.env_of, self.layout, length, phase)
        if algo.warm_up_iterations and phase == "step":
            jax.eval_shape(lambda: algo.warm_up(env := self.env_of(algo.num_envs), algo.init(env, jax.random.key(0))))
        refuse_unread_settings(self.algo, reads)
        return projection

    def warm_up(self, iterations: int) -> list[Part]:
        """The warm-up of a run of so many iterations in all."""
        iterations = min(self.algo.warm_up_iterations, iterations)
        return self.divide(self.project(1, "warm_up"), iterations, iterations, "warm_up") if iterations else []

    def divide(self, one: Projection, iterations: int, at_once: int, phase: Phase = "step") -> list[Part]:
        """What to go through and how often, with at most `at_once` iterations in a dispatch; `one` is one of them."""
        # Iterations that nothing interrupts are one dispatch: few enough to follow the run, many enough to be free.
        length = 1 if one.multi_segment else min(_length(iterations), max(1, at_once))
        parts = [(one if length == 1 else self.project(length, phase), iterations // length)]
        rest = iterations % length
        return [*parts, (self.project(rest, phase), 1)] if rest else parts

    def init(self, seed: int) -> Any:
        """The state before the first iteration."""
        env, key = self.env_of(self.algo.num_envs), jax.random.key(seed)
        return jit_with_host(partial(self.algo.init, env), key)(key)


def train_in_memory(
    algo: Algorithm,
    env: EnvSpec,
    *,
    layout: Layout | str | None = None,
    engine: str = "local",
    steps: int = DEFAULT_STEPS,
    seed: int = 0,
    observers: Sequence[Observer] = (),
    state_observers: Sequence[StateObserver] = (),
    stuck_after: float = 600.0,
) -> Result:
    """Train for at least `steps` environment steps, in whole iterations. Writes no files and prints nothing.

    `weft.train` adds the run's folder, the progress display and evaluations.
    """
    started = time.perf_counter()
    if engine not in ENGINES:
        raise unknown("engine", engine, ENGINES)
    plan = Plan.of(algo, env, layout)
    returns = Returns()
    state_every = min([steps, *(observer.state_every for observer in state_observers)])
    parts, iterations, steps_per_iteration = _divide(plan, steps, state_every)
    engines = [(ENGINES[engine](projection, stuck_after=stuck_after), times) for projection, times in parts]
    with own_objects():
        state = jax.block_until_ready(plan.init(seed))
        compiled = time.perf_counter()
        reporter = Reporter(iterations, steps_per_iteration, (returns, *observers), state_observers, compiled)
        for compiled_engine, times in engines:
            reporter.begun = reporter.done
            length = compiled_engine.projection.trace.length
            watch, due = partial(reporter, length), partial(reporter.due, length)
            state = compiled_engine.run(state, times, watch, due, reporter.meter)
        jax.block_until_ready(state)
        ended = time.perf_counter()
        _refuse_nan(state)
    return Result(
        algo=name_of(algo),
        env=plan.env_of.name,
        layout=plan.layout.name,
        engine=engine,
        seed=seed,
        steps=iterations * steps_per_iteration,
        iterations=iterations,
        wall_s=ended - started,
        compile_s=compiled - started,
        steps_per_s=iterations * steps_per_iteration / (ended - compiled),
        episodes=returns.episodes,
        return_mean=returns.return_mean,
        state=state,
        episodes_dropped=returns.dropped,
        system=reporter.total,
    )


@dataclass
class Reporter:
    """Sends each observer an update for every pass of the programs, and each state observer the state when due."""

    iterations: int
    """Iterations of the whole run."""
    steps_per_iteration: int
    observers: Sequence[Observer]
    state_observers: Sequence[StateObserver]
    started: float
    done: int = 0
    """Iterations done so far."""
    begun: int = 0
    """Iterations done before the current engine started."""
    meter: Meter = field(default_factory=Meter)
    total: System | None = None
    """Where the time went over the whole run, set at its end."""
    next_reading: float = 0.0
    state_sent_at: list[int] = field(init=False)
    """The environment steps at which each state observer last received the state."""

    def __post_init__(self) -> None:
        self.next_reading = time.perf_counter() + READING
        self.state_sent_at = [0] * len(self.state_observers)

    def __call__(self, iterations: int, metrics: dict[str, Mean], state: Any) -> None:
        rows = {name: (np.asarray(mean.total), np.asarray(mean.count)) for name, mean in metrics.items()}
        self.done += iterations
        self.refuse_nan(rows)
        if state is not None:
            self.send_state(state)
        system, steps = self.read(), self.done * self.steps_per_iteration
        seconds = time.perf_counter() - self.started
        total = self.total if system else None
        update = Update(self.done, self.iterations, steps, seconds, rows, system=system, total=total)
        for observer in self.observers:
            observer(update)

    def read(self) -> System | None:
        """Returns where the time went since the last reading, or None if that was too recent."""
        last, now = self.done == self.iterations, time.perf_counter()
        if self.meter.trivial or (now < self.next_reading and not last):
            return None
        self.next_reading = now + READING
        system, total = self.meter.read()
        self.total = total if last else None
        return system

    def due(self, length: int, number: int) -> bool:
        """Whether any state observer is due the state after pass `number`, of `length` iterations each."""
        after = self.begun + number * length
        steps_before, steps = ((iterations * self.steps_per_iteration) for iterations in (after - length, after))
        last = after == self.iterations
        return any(last or _crosses(steps_before, steps, each.state_every) for each in self.state_observers)

    def send_state(self, state: Any) -> None:
        steps, last = self.done * self.steps_per_iteration, self.done == self.iterations
        for index, observer in enumerate(self.state_observers):
            if last or _crosses(self.state_sent_at[index], steps, observer.state_every):
                self.state_sent_at[index] = steps
                observer.receive_state(steps, state)

    def refuse_nan(self, rows: dict[str, tuple[np.ndarray, np.ndarray]]) -> None:
        for name, (total, _) in rows.items():
            if np.isnan(total).any():
                iteration = self.done - len(total) + int(np.isnan(total).argmax()) + 1
                raise Diverged(
                    f"{name} is not a number in iteration {iteration} (step {iteration * self.steps_per_iteration:,}): "
                    "training has diverged; a smaller step size or gradient norm may help"
                )


def _crosses(before: int, after: int, every: int) -> bool:
    """Whether a multiple of `every` lies after `before` and not after `after`."""
    return after // every > before // every


def _refuse_nan(state: Any) -> None:
    for path, leaf in jax.tree_util.tree_flatten_with_path(state)[0]:
        if jnp.issubdtype(leaf.dtype, jnp.inexact) and jnp.isnan(leaf).any():
            raise Diverged(f"state{jax.tree_util.keystr(path)} is not a number at the end: training has diverged")


def _divide(plan: Plan, steps: int, state_every: int) -> tuple[list[Part], int, int]:
    """The projections to run and how often each; iterations in all; environment steps in each."""
    one = plan.project()
    per = plan.algo.steps_per_iteration or one.trace.steps_per_iteration
    if per == 0:
        raise WeftError(
            f"{type(plan.algo).__name__} never calls env.step in its step, so no number of steps would end it: if it "
            "learns from something else, say what counts as steps by its property steps_per_iteration"
        )
    if steps < 1:
        raise WeftError(f"steps={steps}: give at least 1")
    iterations = math.ceil(steps / per)
    warm_up = plan.warm_up(iterations)
    for projection, _ in warm_up:
        if projection.trace.steps_per_iteration != per:
            raise WeftError(
                f"an iteration of {type(plan.algo).__name__}.warm_up takes "
                f"{projection.trace.steps_per_iteration} environment steps and one of step {per}: they must be alike"
            )
    rest = iterations - min(iterations, plan.algo.warm_up_iterations)
    parts = plan.divide(one, rest, state_every // per) if rest else []
    return warm_up + parts, iterations, per


def _length(iterations: int) -> int:
    """Iterations in one dispatch: about a sixty-fourth of the run, at most 32, a divisor of the run if it can be."""
    about = max(1, min(iterations // 64, 32))
    # Another length for the rest would have to be compiled too, so a divisor is worth some distance.
    near = [length for length in range(about // 4 + 1, 4 * about + 1) if iterations % length == 0]
    return min(near, key=lambda length: abs(math.log(length / about)), default=about)
