"""Several observations seen as one, so that what moves can be seen moving.

The last `n` observations of an episode are joined, the oldest first. At its start there are not that many: the first is
then repeated, so that nothing is seen of another episode.

>>> import jax
>>> from weft.envs import make
>>> env = frame_stack(make("gymnax:Breakout-MinAtar", 2), 4)
>>> env.observation_space.shape, env.reset(jax.random.key(0))[1].shape
((10, 10, 16), (2, 10, 10, 16))
"""

from dataclasses import dataclass, replace
from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

from weft.envs import spaces
from weft.envs.rows import select
from weft.envs.timestep import Env, TimeStep
from weft.envs.wrappers.wrapped import Layer, map_boxes, over
from weft.errors import WeftError


def frame_stack(env: Env, frames: int) -> Env:
    """The last `frames` observations as one, in every part of a nested observation that is a Box.

    A vector's are joined one after another, an image's along its channels: the smaller of its first and last axis. A
    number's, and those of an image without channels, get a new last axis.
    """
    if frames < 1:
        raise WeftError(f"frame_stack: {frames} frames, but at least one is needed")
    boxes = spaces.map_space(lambda part: isinstance(part, gym.spaces.Box), env.observation_space)
    return over(env, FrameStack(frames, tuple(jax.tree.leaves(boxes))))


def frame_axis(shape: tuple[int, ...]) -> int | None:
    """The axis of one observation along which frames are joined, from either end; None where they get a new last one.

    >>> frame_axis((4,)), frame_axis((84, 84)), frame_axis((84, 84, 3)), frame_axis((3, 84, 84))
    (-1, None, -1, 0)
    """
    if len(shape) in (0, 2):
        return None
    return 0 if shape[0] < shape[-1] else -1


@dataclass(frozen=True)
class FrameStack(Layer):
    """The memory is what was observed last: the joined frames, of those leaves that are joined."""

    frames: int
    boxes: tuple[bool, ...]
    """For every leaf of an observation, whether its frames are joined."""

    def space(self, space: gym.Space) -> gym.Space:
        return map_boxes(self._widened, space)

    def start(self, obs: Any, trained: Any | None) -> tuple[Any, Any]:
        del trained
        first = self._repeated(self._leaves(obs))
        return first, self._observation(obs, first)

    def after(self, memory: Any, timestep: TimeStep) -> tuple[Any, TimeStep]:
        obs, final_obs = self._leaves(timestep.obs), self._leaves(timestep.final_obs)
        ended = timestep.terminated | timestep.truncated
        frames = select(ended | ~timestep.valid, self._repeated(obs), self._pushed(memory, obs))
        # What an autoreset inserted is the start of an episode and the end of none.
        final = select(timestep.valid, self._pushed(memory, final_obs), frames)
        joined = self._observation(timestep.obs, frames), self._observation(timestep.final_obs, final)
        return frames, replace(timestep, obs=joined[0], final_obs=joined[1])

    def _leaves(self, obs: Any) -> list[jax.Array]:
        """One frame of every leaf that is joined, with the axis that it is joined along."""
        leaves = zip(jax.tree.leaves(obs), self.boxes, strict=True)
        return [leaf[..., None] if frame_axis(leaf.shape[1:]) is None else leaf for leaf, box in leaves if box]

    def _observation(self, obs: Any, joined: list[jax.Array]) -> Any:
        """An observation with its joined leaves put in."""
        leaves, tree = jax.tree.flatten(obs)
        remaining = iter(joined)
        return tree.unflatten([next(remaining) if box else leaf for leaf, box in zip(leaves, self.boxes, strict=True)])

    def _repeated(self, frames: list[jax.Array]) -> list[jax.Array]:
        return [jnp.concatenate([frame] * self.frames, axis=_batched_axis(frame)) for frame in frames]

    def _pushed(self, joined: list[jax.Array], frames: list[jax.Array]) -> list[jax.Array]:
        """The joined frames without the oldest and with one more."""
        return [_push(old, frame) for old, frame in zip(joined, frames, strict=True)]

    def _widened(self, box: gym.spaces.Box) -> gym.spaces.Box:
        low, high = box.low, box.high
        if frame_axis(box.shape) is None:
            low, high = low[..., None], high[..., None]
        axis = frame_axis(low.shape) or 0
        low, high = (np.concatenate([bound] * self.frames, axis=axis) for bound in (low, high))
        return gym.spaces.Box(low, high, dtype=spaces.dtype(box).type)


def _push(joined: jax.Array, frame: jax.Array) -> jax.Array:
    axis = _batched_axis(frame)
    kept = jax.lax.slice_in_dim(joined, frame.shape[axis], joined.shape[axis], axis=axis)
    return jnp.concatenate([kept, frame], axis=axis)


def _batched_axis(frame: jax.Array) -> int:
    """The axis along which frames [B, ...] are joined."""
    return 1 if frame_axis(frame.shape[1:]) == 0 else frame.ndim - 1
