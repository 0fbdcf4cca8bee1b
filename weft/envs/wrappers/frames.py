"""Frame stacking: several consecutive observations as one, so that a policy can see motion.

The last `n` observations of an episode are concatenated, the oldest first. At the start of an episode the first
observation is repeated, so that a stack never contains observations of another episode.

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
from weft.envs.rows import select_rows
from weft.envs.timestep import Env, TimeStep
from weft.envs.wrappers.wrapper import WrappedEnv, Wrapper, map_boxes
from weft.errors import WeftError


def frame_stack(env: Env, frames: int) -> Env:
    """Concatenates the last `frames` observations, in every part of a nested observation that is a Box.

    Images are joined along the channel axis, which is the smaller of the first and last axis. Scalars and images
    without channels are stacked along a new last axis.
    """
    if frames < 1:
        raise WeftError(f"frame_stack: {frames} frames, but at least one is needed")
    boxes = spaces.map_space(lambda part: isinstance(part, gym.spaces.Box), env.observation_space)
    return WrappedEnv(env, FrameStack(frames, tuple(jax.tree.leaves(boxes))))


def frame_axis(shape: tuple[int, ...]) -> int | None:
    """Returns the axis of an observation along which frames are joined: 0, -1, or None for a new last axis.

    >>> frame_axis((4,)), frame_axis((84, 84)), frame_axis((84, 84, 3)), frame_axis((3, 84, 84))
    (-1, None, -1, 0)
    """
    if len(shape) in (0, 2):
        return None
    return 0 if shape[0] < shape[-1] else -1


@dataclass(frozen=True)
class FrameStack(Wrapper):
    """The state is a list of stacks, one for every leaf of the observation that is a Box."""

    frames: int
    boxes: tuple[bool, ...]
    """For every leaf of an observation, whether it is a Box."""

    def observation_space(self, space: gym.Space) -> gym.Space:
        return map_boxes(self._stacked_box, space)

    def init(self, obs: Any, trained: Any | None) -> tuple[Any, Any]:
        del trained
        stacks = self._repeated(self._frames(obs))
        return stacks, self._with_stacks(obs, stacks)

    def transform(self, state: Any, timestep: TimeStep) -> tuple[Any, TimeStep]:
        obs, final_obs = self._frames(timestep.obs), self._frames(timestep.final_obs)
        ended = timestep.terminated | timestep.truncated
        stacks = select_rows(ended | ~timestep.valid, self._repeated(obs), self._push(state, obs))
        # A row that an autoreset inserted starts an episode and ends none.
        final_stacks = select_rows(timestep.valid, self._push(state, final_obs), stacks)
        stacked_obs = self._with_stacks(timestep.obs, stacks)
        return stacks, replace(timestep, obs=stacked_obs, final_obs=self._with_stacks(timestep.final_obs, final_stacks))

    def _frames(self, obs: Any) -> list[jax.Array]:
        """Returns every leaf that is a Box, with the axis along which frames are joined."""
        leaves = zip(jax.tree.leaves(obs), self.boxes, strict=True)
        return [leaf[..., None] if frame_axis(leaf.shape[1:]) is None else leaf for leaf, is_box in leaves if is_box]

    def _with_stacks(self, obs: Any, stacks: list[jax.Array]) -> Any:
        """Returns an observation with every leaf that is a Box replaced by its stack."""
        leaves, tree = jax.tree.flatten(obs)
        remaining = iter(stacks)
        return tree.unflatten(
            [next(remaining) if is_box else leaf for leaf, is_box in zip(leaves, self.boxes, strict=True)]
        )

    def _repeated(self, frames: list[jax.Array]) -> list[jax.Array]:
        return [jnp.concatenate([frame] * self.frames, axis=_batched_axis(frame)) for frame in frames]

    def _push(self, stacks: list[jax.Array], frames: list[jax.Array]) -> list[jax.Array]:
        """Drops the oldest frame of every stack and appends a new one."""
        return [_push(stack, frame) for stack, frame in zip(stacks, frames, strict=True)]

    def _stacked_box(self, box: gym.spaces.Box) -> gym.spaces.Box:
        low, high = box.low, box.high
        if frame_axis(box.shape) is None:
            low, high = low[..., None], high[..., None]
        axis = frame_axis(low.shape) or 0
        low, high = (np.concatenate([bound] * self.frames, axis=axis) for bound in (low, high))
        return gym.spaces.Box(low, high, dtype=spaces.dtype(box).type)


def _push(stack: jax.Array, frame: jax.Array) -> jax.Array:
    axis = _batched_axis(frame)
    newer = jax.lax.slice_in_dim(stack, frame.shape[axis], stack.shape[axis], axis=axis)
    return jnp.concatenate([newer, frame], axis=axis)


def _batched_axis(frame: jax.Array) -> int:
    """Returns the axis along which batches of frames, [B, ...], are joined."""
    return 1 if frame_axis(frame.shape[1:]) == 0 else frame.ndim - 1
