"""Actions that no network chose."""

from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from weft.envs.spaces import map_space
from weft.errors import WeftError
from weft.ops.distributions import choices


def random_actions(space: gym.Space, key: jax.Array, shape: tuple[int, ...]) -> Any:
    """Actions of a space, each as likely as any other, with axes `shape` in front."""
    parts, structure = jax.tree.flatten(map_space(lambda part: part, space))
    keys = jax.random.split(key, len(parts))
    return structure.unflatten(_random(part, key, shape) for part, key in zip(parts, keys, strict=True))


def permitted(space: gym.Space, action: Any, mask: Any) -> Any:
    """Random actions of a space, moved to those that a mask leaves of its choices; None leaves all.

    >>> space, mask = gym.spaces.MultiDiscrete([2, 3]), jnp.array([0, 1, 1, 0, 1])
    >>> [permitted(space, jnp.array([0, number]), mask).tolist() for number in range(3)]
    [[1, 0], [1, 2], [1, 0]]
    """
    if mask is None:
        return action
    if isinstance(space, gym.spaces.Dict):
        return {name: permitted(part, action[name], mask.get(name)) for name, part in space.items()}
    if isinstance(space, gym.spaces.Tuple):
        return tuple(permitted(*each) for each in zip(space, action, mask, strict=True))
    counts = choices(space)
    if counts is None:
        return action
    numbers = jnp.split(action.reshape(*mask.shape[:-1], len(counts)), len(counts), axis=-1)
    allowed = jnp.split(mask.astype(bool), np.cumsum(counts)[:-1], axis=-1)
    moved = [nth(part, number[..., 0]) for part, number in zip(allowed, numbers, strict=True)]
    return jnp.stack(moved, axis=-1).reshape(action.shape)


def nth(allowed: Bool[Array, "*batch choices"], number: Int[Array, "*batch"]) -> Int[Array, "*batch"]:
    """The choice that stands at `number`, counted round and round, among those that there are."""
    counts = jnp.maximum(jnp.sum(allowed, axis=-1), 1)
    place = jnp.cumsum(allowed, axis=-1) - 1
    return jnp.argmax(allowed & (place == (number % counts)[..., None]), axis=-1).astype(jnp.int32)


def _random(space: gym.Space, key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    assert space.shape is not None
    counts = choices(space)
    if counts is not None:
        sizes = np.asarray(counts, np.int32).reshape(space.shape)
        return jax.random.randint(key, (*shape, *space.shape), 0, sizes, jnp.int32)
    assert isinstance(space, gym.spaces.Box)
    if not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
        raise WeftError(f"random actions need bounds, and {space} has none everywhere")
    low, high = (jnp.asarray(bound, jnp.float32) for bound in (space.low, space.high))
    return low + (high - low) * jax.random.uniform(key, (*shape, *space.shape), jnp.float32)
