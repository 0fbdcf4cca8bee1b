"""Evaluating a finished run: `weft eval RUN`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from weft.envs.world import World
from weft.evaluation.episodes import CHUNK, Evaluator
from weft.evaluation.saved import SavedRun
from weft.evaluation.video import Camera, check_suffix
from weft.report.update import Evaluation


def evaluate(
    run: SavedRun, *, episodes: int = 10, seed: int = 0, greedy: bool = True, video: str | Path | None = None
) -> Evaluation:
    """Play with what a run learned: the likeliest actions, or drawn ones; `video` is a file to record them in."""
    if video is None:
        return _play(run, run.world, episodes=episodes, seed=seed, greedy=greedy)
    path = check_suffix(Path(video))
    camera = Camera(run.world)
    played = _play(run, camera.world, episodes=episodes, seed=seed, greedy=greedy, watch=camera.shoot)
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


def _play(
    run: SavedRun, world: World, *, episodes: int, seed: int, greedy: bool, watch: Callable | None = None
) -> Evaluation:
    watching: dict[str, Any] = {"watch": watch, "chunk": 1} if watch else {"chunk": CHUNK}
    player = Evaluator(run.algo, world, greedy=greedy, **watching)
    return player(run.learned(), episodes=episodes, seed=seed, steps=run.steps)
