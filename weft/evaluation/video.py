"""Videos of episodes: one frame after every step, written as .mp4 or .gif."""

import dataclasses
import os
import warnings
from pathlib import Path
from typing import Any, cast

import numpy as np

from weft.envs.world import World
from weft.envs.wrappers import unwrap
from weft.errors import WeftError
from weft.evaluation.evaluator import EpisodeState

SUFFIXES = (".mp4", ".gif")
FRAMES_PER_SECOND = 30


class VideoRecorder:
    """Collects frames of one environment. Play in `world`: the given world with rendering switched on."""

    def __init__(self, world: World):
        # pygame must not look for a screen or a sound card.
        for variable in ("SDL_VIDEODRIVER", "SDL_AUDIODRIVER"):
            os.environ.setdefault(variable, "dummy")
        bare: Any = dataclasses.replace(world, wrappers=())(1)
        if not hasattr(bare, "render"):
            raise WeftError(f"{world.name} cannot be rendered: evaluate it without --video")
        # Gymnasium environments render only if they were created with a render mode.
        options = dict(world.options) | getattr(bare.pool_factory, "render_options", {})
        self.world = dataclasses.replace(world, options=tuple(sorted(options.items())))
        self._env = self.world(1)
        self._frames: list[np.ndarray] = []

    def add_frame(self, episode: EpisodeState) -> None:
        """Render the current state as the next frame."""
        env, state = unwrap(self._env, episode.env)
        self._frames.append(cast(Any, env).render(state))

    def write(self, path: Path) -> None:
        """Write all frames to a video file."""
        import imageio.v3 as imageio

        # Video formats need even sides, so an odd side gets its last row or column twice.
        frames = [
            np.pad(frame, [(0, side % 2) for side in frame.shape[:2]] + [(0, 0)], "edge") for frame in self._frames
        ]
        path.parent.mkdir(parents=True, exist_ok=True)
        options: dict[str, Any] = {"fps": FRAMES_PER_SECOND, "macro_block_size": 2}
        if path.suffix == ".gif":
            options = {"duration": 1000 / FRAMES_PER_SECOND, "loop": 0}
        with warnings.catch_warnings():
            # Safe here: the forked process immediately executes the encoder.
            warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
            imageio.imwrite(path, np.stack(frames), **options)


def check_suffix(path: Path) -> Path:
    """Returns the path if a video can be written there."""
    if path.suffix not in SUFFIXES:
        raise WeftError(f"--video {path}: the name must end in {' or '.join(SUFFIXES)}")
    try:
        import imageio
        import imageio_ffmpeg
    except ModuleNotFoundError:
        raise WeftError("--video needs two more packages: pip install 'weft[video]'") from None
    del imageio, imageio_ffmpeg
    return path
