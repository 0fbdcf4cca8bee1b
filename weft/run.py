"""A whole training run from one call: train, show progress, evaluate, and write the run's folder.

`weft.train` is `weft.runtime.driver.train_in_memory` with the usual observers. Call that function directly to train
without files and without output.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import gymnasium as gym

from weft.algorithm import Algorithm, name_of
from weft.datasets.parquet import check_new_folder
from weft.datasets.record_wrapper import record_world, remove_recording
from weft.envs.world import EnvSpec, World
from weft.errors import WeftError
from weft.evaluation.observer import EvaluationObserver
from weft.evaluation.trained_params import save_trained_params
from weft.graph.marks import count_calls
from weft.graph.trace import trace
from weft.layout.layout import Layout
from weft.report.files import PARAMS, RunFolder, choose_folder, describe_run
from weft.report.progress import progress, rate
from weft.report.system import ACTIVITIES, RoleTime
from weft.report.update import Observer
from weft.runtime import compilation_cache
from weft.runtime.driver import Result, train_in_memory
from weft.settings import DEFAULT_STEPS


def train(
    algo: Algorithm,
    env: EnvSpec,
    *,
    layout: Layout | str | None = None,
    engine: str = "local",
    steps: int = DEFAULT_STEPS,
    seed: int = 0,
    out: str | Path | None = None,
    quiet: bool = False,
    observers: Sequence[Observer] = (),
    wrappers: Sequence[str] = (),
    env_options: Mapping[str, Any] | None = None,
    eval_every: int | None = None,
    eval_episodes: int = 10,
    record: str | Path | None = None,
    cache: str | Path | None = None,
) -> Result:
    """Train `algo` on `env` with `layout`, and write the run's files to `out` or to a new folder in `runs`.

    `env` is a name, a subclass of `gymnasium.Env`, a function that returns one, or a function from the number of
    environments to an `Env`. `wrappers` are names from `weft.envs.wrappers`, innermost first. `record` is a new folder
    for a dataset of all environment steps, recorded inside the wrappers. Every `eval_every` environment steps and at
    the end, another process evaluates the policy for `eval_episodes` episodes. `cache` is the folder for compiled
    programs, or `off`; see `weft.runtime.compilation_cache`.
    """
    compilation_cache.enable(cache)
    settings: dict[str, Any] = {"layout": layout or "fused", "engine": engine, "steps": steps, "seed": seed}
    world = World.of(env, env_options, wrappers)
    name = name_of(algo)
    path = choose_folder(out, algo=name, env=world.name)
    training_world = world if record is None else record_training(algo, world, record)
    with ExitStack() as stack:
        folder = stack.enter_context(closing(RunFolder(path, describe_run(algo, world, **settings))))
        displays = [] if quiet else [stack.enter_context(progress(f"{name} {world.name}"))]
        all_observers: list[Observer] = [folder, *displays, *observers]
        if eval_every is None:
            result = train_in_memory(algo, training_world, **settings, observers=all_observers)
        else:
            evaluations = stack.enter_context(
                EvaluationObserver(algo, training_world, all_observers, every=eval_every, episodes=eval_episodes)
            )
            result = train_in_memory(
                algo, training_world, **settings, observers=[evaluations], state_observers=[evaluations]
            )
            evaluations.finish()
            result = dataclasses.replace(result, evaluation=evaluations.last_return)
    state = remove_recording(result.state)
    save_trained_params(path / PARAMS, algo, world, state)
    return dataclasses.replace(result, state=state, out=path)


def record_training(algo: Algorithm, world: World, path: str | Path) -> World:
    """The world that `algo` trains in, with every step recorded in a new dataset."""
    name = name_of(algo)
    if algo.steps_per_iteration is not None:
        raise WeftError(f"{name} takes no steps in its environment, so there is nothing to record: leave --record out")
    check_new_folder(path)
    jaxpr = trace(algo.resolve(asynchronous=False), world(algo.num_envs)).jaxpr.jaxpr
    if (calls := count_calls(jaxpr, "env.episodes")) != 1:
        raise WeftError(
            f"{name} calls env.episodes {calls} times in an iteration: to record a run, the algorithm must call it "
            "once per iteration, after all steps"
        )
    return record_world(world, path, num_envs=algo.num_envs, steps=count_calls(jaxpr, "env"))


def summarise(result: Result) -> str:
    """Returns a summary of a finished run for users: performance, speed, and the folder of its files."""
    times = f"{result.wall_s:.1f} s in total, of which {result.compile_s:.1f} s compiling"
    lines = {
        "return": _return_line(result),
        "steps": f"{result.steps:,} in {result.iterations:,} iterations",
        "speed": f"{rate(result.steps_per_s)} steps/s ({times})",
        "files": str(result.out),
    }
    if result.lag is not None:
        lines["lag"] = str(result.lag)
    if result.system is not None:
        lines["roles"] = f"\n{'':<8}".join(map(str, result.system.roles))
    if result.evaluation is not None:
        lines["eval"] = f"{result.evaluation:.1f}, the mean of the last evaluation"
    if result.episodes_dropped:
        lines["dropped"] = f"{result.episodes_dropped:,} episodes, because their environment failed"
    return "\n".join(f"{name:<8}{line}" for name, line in lines.items())


def summary_record(result: Result) -> dict[str, Any]:
    """Returns a finished run as one JSON object: every field but the state, with null for NaN and infinity."""
    names = [field.name for field in dataclasses.fields(result) if field.name not in ("state", "system")]
    record = {name: _to_json(getattr(result, name)) for name in names}
    lag, system = result.lag, result.system
    return record | {
        "lag": lag and {"mean": _to_json(lag.mean), "max": lag.max, "counts": dict(sorted(lag.counts.items()))},
        "roles": system and {role.role: _role_times(role) for role in system.roles},
    }


def solved_at(env: str) -> float | None:
    """Returns the return from which Gymnasium considers an environment solved, or None if it has no threshold.

    >>> solved_at("gymnax:CartPole-v1"), solved_at("gymnax:Pendulum-v1"), solved_at("gymnax:Pong-misc")
    (475.0, None, None)
    """
    spec = gym.registry.get(env.rpartition(":")[2])
    return spec.reward_threshold if spec else None


def _return_line(result: Result) -> str:
    if result.return_mean is None:
        return "none: no episode finished"
    line = f"{result.return_mean:.1f}, the mean of the last {min(result.episodes, 100)} of {result.episodes:,} episodes"
    threshold = solved_at(result.env)
    if threshold is None:
        return line
    verdict = "solved" if result.return_mean >= threshold else "not solved"
    return f"{line}: {verdict} ({threshold:g} or more)"


def _role_times(role: RoleTime) -> dict[str, Any]:
    return {name: _to_json(getattr(role, name)) for name in ACTIVITIES}


def _to_json(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 3) if math.isfinite(value) else None
    return value if isinstance(value, int | str | None) else str(value)
