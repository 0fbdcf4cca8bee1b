"""Trains an algorithm on an environment under a layout, and returns the trained state.

`Plan` traces and projects without compiling. `train_in_memory` compiles the plan, runs it and reports to observers.
"""

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

Passes = tuple[Projection, int]
"""A projection, and the number of times that its programs are executed. A pass has one or several iterations."""

# Seconds between two reports on where the time goes.
SYSTEM_REPORT_SECONDS = 1.0


class Diverged(WeftError):
    """A metric or a leaf of the state has become NaN."""


@dataclass(frozen=True)
class Result:
    """The result of a run: its settings, its speed, its returns and the final state."""

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
    """Episodes that were dropped because their environment failed and was restarted."""
    evaluation: float | None = None
    """The mean return of the last evaluation, if there was one."""
    system: System | None = field(default=None, repr=False)
    """Where the time of the whole run went, if there were several replicas."""
    out: Path | None = None
    """The run's folder, if it has one."""

    @property
    def lag(self) -> Lag | None:
        """The lag of the consumed iterations, if the layout has lanes."""
        return self.system and self.system.lag


@dataclass(frozen=True)
class Plan:
    """A run that has been traced and projected without errors, but not compiled."""

    algo: Algorithm
    env_of: World
    layout: Layout

    @classmethod
    def of(cls, algo: Algorithm, env: EnvSpec, layout: Layout | str | None) -> "Plan":
        """Resolves the names of the environment (see `World.of`) and the layout."""
        disable_async_cpu_dispatch()
        if isinstance(layout, str) or layout is None:
            layout = catalogue.parse(layout or "fused")
        return cls(algo.resolve(asynchronous=bool(layout.lanes)), World.of(env), layout)

    def project(self, length: int = 1, phase: Phase = "step") -> Projection:
        """Projects a pass of `length` iterations. Raises an error if a setting was given that nothing reads."""
        algo, reads = record_reads(self.algo)
        projection = project(algo, self.env_of, self.layout, length, phase)
        if algo.warm_up_iterations and phase == "step":
            jax.eval_shape(lambda: algo.warm_up(env := self.env_of(algo.num_envs), algo.init(env, jax.random.key(0))))
        refuse_unread_settings(self.algo, reads)
        return projection

    def warm_up(self, iterations: int) -> list[Passes]:
        """Returns the passes of the warm-up in a run of `iterations` iterations."""
        iterations = min(self.algo.warm_up_iterations, iterations)
        return self.divide(self.project(1, "warm_up"), iterations, iterations, "warm_up") if iterations else []

    def divide(self, single: Projection, iterations: int, max_length: int, phase: Phase = "step") -> list[Passes]:
        """Divides iterations into passes of at most `max_length` iterations. `single` is a pass of one iteration."""
        # A program of a single segment executes a pass in one dispatch. Long passes make the cost of dispatch
        # negligible; short ones report the run's progress often enough.
        length = 1 if single.multi_segment else min(_pass_length(iterations), max(1, max_length))
        passes = [(single if length == 1 else self.project(length, phase), iterations // length)]
        rest = iterations % length
        return [*passes, (self.project(rest, phase), 1)] if rest else passes

    def init(self, seed: int) -> Any:
        """Computes the state before the first iteration."""
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
    """Trains for at least `steps` environment steps, in whole iterations. Writes no files and prints nothing.

    `weft.train` adds the run's folder, the progress display and evaluations.
    """
    started = time.perf_counter()
    if engine not in ENGINES:
        raise unknown("engine", engine, ENGINES)
    plan = Plan.of(algo, env, layout)
    returns = Returns()
    state_every = min([steps, *(observer.state_every for observer in state_observers)])
    all_passes, iterations, steps_per_iteration = _plan_passes(plan, steps, state_every)
    engines = [(ENGINES[engine](projection, stuck_after=stuck_after), passes) for projection, passes in all_passes]
    with own_objects():
        state = jax.block_until_ready(plan.init(seed))
        compiled = time.perf_counter()
        reporter = Reporter(iterations, steps_per_iteration, (returns, *observers), state_observers, compiled)
        for compiled_engine, passes in engines:
            reporter.start_engine(compiled_engine.projection.trace.length)
            state = compiled_engine.run(state, passes, reporter.on_pass, reporter.state_is_due, reporter.meter)
        jax.block_until_ready(state)
        ended = time.perf_counter()
        _raise_if_state_has_nan(state)
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
        system=reporter.overall,
    )


@dataclass
class Reporter:
    """Sends every observer an update after each pass, and each state observer the state when it is due."""

    iterations: int
    """Iterations of the whole run."""
    steps_per_iteration: int
    observers: Sequence[Observer]
    state_observers: Sequence[StateObserver]
    started: float
    done: int = 0
    """Iterations done so far."""
    done_by_earlier_engines: int = 0
    pass_length: int = 1
    """Iterations in a pass of the current engine."""
    meter: Meter = field(default_factory=Meter)
    overall: System | None = None
    """Where the time of the whole run went, set at its end."""
    next_system_report: float = 0.0
    state_sent_at: list[int] = field(init=False)
    """The environment steps at which each state observer last received the state."""

    def __post_init__(self) -> None:
        self.next_system_report = time.perf_counter() + SYSTEM_REPORT_SECONDS
        self.state_sent_at = [0] * len(self.state_observers)

    def start_engine(self, pass_length: int) -> None:
        self.done_by_earlier_engines, self.pass_length = self.done, pass_length

    def on_pass(self, metrics: dict[str, Mean], state: Any) -> None:
        """Called by the engine after each pass, with the state if it is due."""
        sums = {name: (np.asarray(mean.total), np.asarray(mean.count)) for name, mean in metrics.items()}
        self.done += self.pass_length
        self.raise_if_nan(sums)
        if state is not None:
            self.send_state(state)
        system = self.system_report()
        steps, seconds = self.done * self.steps_per_iteration, time.perf_counter() - self.started
        overall = self.overall if system else None
        update = Update(self.done, self.iterations, steps, seconds, sums, system=system, total=overall)
        for observer in self.observers:
            observer(update)

    def state_is_due(self, number: int) -> bool:
        """Whether any state observer is due the state after pass `number` of the current engine."""
        after = self.done_by_earlier_engines + number * self.pass_length
        before, last = after - self.pass_length, after == self.iterations
        steps_before, steps_after = before * self.steps_per_iteration, after * self.steps_per_iteration
        return any(last or _crosses(steps_before, steps_after, each.state_every) for each in self.state_observers)

    def send_state(self, state: Any) -> None:
        steps, last = self.done * self.steps_per_iteration, self.done == self.iterations
        for index, observer in enumerate(self.state_observers):
            if last or _crosses(self.state_sent_at[index], steps, observer.state_every):
                self.state_sent_at[index] = steps
                observer.receive_state(steps, state)

    def system_report(self) -> System | None:
        """Returns where the time went since the last report, or None if that report was too recent."""
        last, now = self.done == self.iterations, time.perf_counter()
        if self.meter.trivial or (now < self.next_system_report and not last):
            return None
        self.next_system_report = now + SYSTEM_REPORT_SECONDS
        recent, overall = self.meter.read()
        self.overall = overall if last else None
        return recent

    def raise_if_nan(self, sums: dict[str, tuple[np.ndarray, np.ndarray]]) -> None:
        for name, (total, _) in sums.items():
            if np.isnan(total).any():
                iteration = self.done - len(total) + int(np.isnan(total).argmax()) + 1
                raise Diverged(
                    f"{name} is NaN in iteration {iteration} (step {iteration * self.steps_per_iteration:,}): training "
                    "has diverged. A smaller learning rate or gradient norm may help"
                )


def _crosses(before: int, after: int, every: int) -> bool:
    """Whether a multiple of `every` is in the interval (before, after]."""
    return after // every > before // every


def _raise_if_state_has_nan(state: Any) -> None:
    for path, leaf in jax.tree_util.tree_flatten_with_path(state)[0]:
        if jnp.issubdtype(leaf.dtype, jnp.inexact) and jnp.isnan(leaf).any():
            raise Diverged(
                f"state{jax.tree_util.keystr(path)} is NaN at the end of the run: training has diverged. A "
                "smaller learning rate or gradient norm may help"
            )


def _plan_passes(plan: Plan, steps: int, state_every: int) -> tuple[list[Passes], int, int]:
    """Returns all passes of a run, its number of iterations, and the environment steps per iteration."""
    single, name = plan.project(), type(plan.algo).__name__
    steps_per_iteration = plan.algo.steps_per_iteration or single.trace.steps_per_iteration
    if steps_per_iteration == 0:
        raise WeftError(
            f"{name} never calls env.step in its method step, so the run would never reach its number of environment "
            "steps. If the algorithm learns from another source, define its property steps_per_iteration"
        )
    if steps < 1:
        raise WeftError(f"steps={steps}: give at least 1")
    iterations = math.ceil(steps / steps_per_iteration)
    warm_up = plan.warm_up(iterations)
    for projection, _ in warm_up:
        if projection.trace.steps_per_iteration != steps_per_iteration:
            raise WeftError(
                f"one iteration of {name}.warm_up makes {projection.trace.steps_per_iteration} environment steps, but "
                f"one of {name}.step makes {steps_per_iteration}: make the numbers equal"
            )
    rest = iterations - min(iterations, plan.algo.warm_up_iterations)
    passes = plan.divide(single, rest, state_every // steps_per_iteration) if rest else []
    return warm_up + passes, iterations, steps_per_iteration


def _pass_length(iterations: int) -> int:
    """Returns the iterations of a pass: about 1/64 of the run, at most 32, and if possible a divisor of the run."""
    target = max(1, min(iterations // 64, 32))
    # A shorter last pass must be compiled separately, so a divisor may differ from the target by a factor of up to 4.
    divisors = [length for length in range(target // 4 + 1, 4 * target + 1) if iterations % length == 0]
    return min(divisors, key=lambda length: abs(math.log(length / target)), default=target)
