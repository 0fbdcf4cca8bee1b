"""Evaluates a finished run, as `weft eval RUN` does."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from weft.datasets.dataset import Source
from weft.datasets.parquet import DatasetWriter
from weft.envs.world import World
from weft.errors import WeftError
from weft.evaluation.evaluator import CHUNK, EpisodeState, Evaluator
from weft.evaluation.saved import SavedRun
from weft.evaluation.trained_params import TrainedParamsSchema
from weft.evaluation.video import VideoRecorder, check_suffix
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
    """Play episodes with a run's policy: with its most likely actions if `greedy`, else with sampled ones.

    `video` is a file for a video of the episodes, `record` a new folder for a dataset of them, and `cache` the folder
    for compiled programs, or `off`.
    """
    compilation_cache.enable(cache)
    options: dict[str, Any] = {"episodes": episodes, "seed": seed, "greedy": greedy}
    with contextlib.ExitStack() as stack:
        if record is not None:
            options["record"] = stack.enter_context(_dataset_writer(run, record)).write
        if video is None:
            return _play(run, run.world, **options)
        path = check_suffix(Path(video))
        recorder = VideoRecorder(run.world)
        evaluation = _play(run, recorder.world, **options, on_step=recorder.add_frame)
        recorder.write(path)
        return evaluation


def describe_evaluation(evaluation: Evaluation) -> str:
    """Returns the mean return, its spread and the mean length, as text for users."""
    returns, std = evaluation.returns, evaluation.return_std
    spread = f"{min(returns):.1f} to {max(returns):.1f}, standard deviation {std:.1f}"
    lines = {
        "return": f"{evaluation.return_mean:.1f}, the mean of {len(returns)} episodes ({spread})",
        "length": f"{evaluation.length_mean:.1f} steps on average",
    }
    return "\n".join(f"{name:<8}{line}" for name, line in lines.items())


def _dataset_writer(run: SavedRun, path: str | Path) -> DatasetWriter:
    if jax.tree.leaves(TrainedParamsSchema(run.algo, run.world).shapes.env_statistics):
        raise WeftError(
            f"--record: {run.path} was trained with wrappers that gather statistics ({', '.join(run.world.wrappers)}), "
            "which a dataset cannot hold: record a run without them"
        )
    env = run.world(1)
    return DatasetWriter(path, Source(run.world.name, env.observation_space, env.action_space))


def _play(
    run: SavedRun,
    world: World,
    *,
    episodes: int,
    seed: int,
    greedy: bool,
    on_step: Callable[[EpisodeState], None] | None = None,
    record: Callable[[dict[str, Any]], None] | None = None,
) -> Evaluation:
    chunks: dict[str, Any] = {"on_chunk": on_step, "chunk": 1} if on_step else {"chunk": CHUNK}
    evaluator = Evaluator(run.algo, world, greedy=greedy, record=record, **chunks)
    return evaluator(run.load_params(), episodes=episodes, seed=seed, steps=run.steps)
