"""Evaluating a finished run: `weft eval RUN`."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from weft.datasets.dataset import Recorder, Source
from weft.envs.world import World
from weft.errors import WeftError
from weft.evaluation.episodes import CHUNK, Evaluator
from weft.evaluation.learned import Learning
from weft.evaluation.saved import SavedRun
from weft.evaluation.video import Camera, check_suffix
from weft.report.update import Evaluation
from weft.runtime import compilation_cache


def evaluate(
    run: SavedRun,
    *,
    episodes: int = 10,
    seed: int = 0,
    greedy: bool = True,
    video: str | Path | None = None,
    record: str | Path | None = None,
    cache: str | Path | None = None,
) -> Evaluation:
    """Play with what a run learned: the likeliest actions, or drawn ones.

    `video` is a file to film the episodes in, `record` a folder to record them in as a dataset.
    """
    compilation_cache.enable(cache)
    options: dict[str, Any] = {"episodes": episodes, "seed": seed, "greedy": greedy}
    with contextlib.ExitStack() as stack:
        if record is not None:
            options["record"] = stack.enter_context(_recorder(run, record))
        if video is None:
            return _play(run, run.world, **options)
        path = check_suffix(Path(video))
        camera = Camera(run.world)
        played = _play(run, camera.world, **options, watch=camera.shoot)
        camera.write(path)
        return played


def describe_evaluation(played: Evaluation) -> str:
    """For people: mean and spread, and every episode."""
    spread = f"{min(played.returns):.1f} to {max(played.returns):.1f}, standard deviation {played.return_std:.1f}"
    lines = {
        "return": f"{played.return_mean:.1f}, the mean of {len(played.returns)} episodes ({spread})",
        "length": f"{played.length_mean:.1f} steps on average",
    }
    return "\n".join(f"{name:<8}{line}" for name, line in lines.items())


def _recorder(run: SavedRun, path: str | Path) -> Recorder:
    if jax.tree.leaves(Learning(run.algo, run.world).shapes.env):
        raise WeftError(
            f"--record: {run.path} was trained in wrappers that learn ({', '.join(run.world.wrappers)}), and what they "
            "learned is not part of a dataset: record a run without them"
        )
    env = run.world(1)
    return Recorder(path, Source(run.world.name, env.observation_space, env.action_space))


def _play(
    run: SavedRun,
    world: World,
    *,
    episodes: int,
    seed: int,
    greedy: bool,
    watch: Callable | None = None,
    record: Recorder | None = None,
) -> Evaluation:
    watching: dict[str, Any] = {"watch": watch, "chunk": 1} if watch else {"chunk": CHUNK}
    player = Evaluator(run.algo, world, greedy=greedy, record=record, **watching)
    return player(run.learned(), episodes=episodes, seed=seed, steps=run.steps)
