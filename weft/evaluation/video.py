"""Episodes as a film: a picture after every step, written as .mp4 or .gif."""

import dataclasses
import os
import warnings
from pathlib import Path
from typing import Any, cast

import numpy as np

from weft.envs.world import World
from weft.envs.wrappers import unwrap
from weft.errors import WeftError

SUFFIXES = (".mp4", ".gif")
FRAMES_PER_SECOND = 30


class Camera:
    """Takes pictures of one environment of a world; `world` is the same world, able to be filmed."""

    def __init__(self, world: World):
        # Pictures need neither a screen nor a sound card, and what draws them should not look for any.
        for variable in ("SDL_VIDEODRIVER", "SDL_AUDIODRIVER"):
            os.environ.setdefault(variable, "dummy")
        bare: Any = dataclasses.replace(world, wrappers=())(1)
        if not hasattr(bare, "render"):
            raise WeftError(f"{world.name} gives no pictures: evaluate it without --video")
        # Environments of Gymnasium's kind draw only if they are made to.
        options = dict(world.options) | getattr(bare.pool_factory, "render_options", {})
        self.world = dataclasses.replace(world, options=tuple(sorted(options.items())))
        self._env = self.world(1)
        self._frames: list[np.ndarray] = []

    def shoot(self, playing: Any) -> None:
        """Take a picture of an episode under way."""
        env, state = unwrap(self._env, playing.env)
        self._frames.append(cast(Any, env).render(state))

    def write(self, path: Path) -> None:
        """Write all pictures taken."""
        import imageio.v3 as imageio

        # Video formats want even sides; a row or column more of the same is not seen.
        frames = [
            np.pad(frame, [(0, side % 2) for side in frame.shape[:2]] + [(0, 0)], "edge") for frame in self._frames
        ]
        path.parent.mkdir(parents=True, exist_ok=True)
        options: dict[str, Any] = {"fps": FRAMES_PER_SECOND, "macro_block_size": 2}
        if path.suffix == ".gif":
            options = {"duration": 1000 / FRAMES_PER_SECOND, "loop": 0}
        with warnings.catch_warnings():
            # The encoder is a program of its own: what is forked does nothing before it becomes that.
            warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
            imageio.imwrite(path, np.stack(frames), **options)


def check_suffix(path: Path) -> Path:
    """The path, if a film can be written there."""
    if path.suffix not in SUFFIXES:
        raise WeftError(f"--video {path}: the name must end in {' or '.join(SUFFIXES)}")
    try:
        import imageio
        import imageio_ffmpeg
    except ModuleNotFoundError:
        raise WeftError("films need two more packages: pip install 'weft[video]'") from None
    del imageio, imageio_ffmpeg
    return path
