"""Actions that are not a policy's: uniformly random ones, and epsilon-greedy exploration."""

from typing import Any, NamedTuple

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from weft.envs.spaces import map_space
from weft.errors import WeftError
from weft.ops.distributions import choices
from weft.ops.q_learning import greedy


class EpsilonGreedyNoise(NamedTuple):
    """The random part of epsilon-greedy actions."""

    explores: Bool[Array, "*batch"]
    """Where the action is the random one."""
    action: Int[Array, "*batch"]
    """Uniformly random actions."""


def random_actions(space: gym.Space, key: jax.Array, shape: tuple[int, ...]) -> Any:
    """Uniformly random actions of a space, with leading axes `shape`."""
    parts, structure = jax.tree.flatten(map_space(lambda part: part, space))
    keys = jax.random.split(key, len(parts))
    return structure.unflatten(_random(part, key, shape) for part, key in zip(parts, keys, strict=True))


def epsilon_greedy_noise(
    space: gym.Space, key: jax.Array, shape: tuple[int, ...], epsilon: Float[Array, "*#batch"] | float
) -> EpsilonGreedyNoise:
    """Draws where to explore, with probability `epsilon`, and the random actions to explore with."""
    key_explores, key_action = jax.random.split(key)
    explores = jax.random.uniform(key_explores, shape) < epsilon
    return EpsilonGreedyNoise(explores, random_actions(space, key_action, shape))


def epsilon_greedy(
    q: Float[Array, "*batch choices"], allowed: Bool[Array, "*batch choices"] | None, noise: EpsilonGreedyNoise
) -> Int[Array, "*batch"]:
    """The action with the highest Q, or the random one where it explores; both among the allowed actions."""
    best = greedy(q, allowed)
    action = noise.action if allowed is None else nth_allowed(allowed, noise.action)
    return jnp.where(noise.explores, action, best)


def exploration_rate(
    steps: Int[Array, ""],
    row: Int[Array, " B"],
    *,
    final: float,
    decay_steps: int,
    spread: float,
    num_envs: int,
) -> Float[Array, " B"]:
    """The exploration rate of every environment after `steps` environment steps in all.

    It decays linearly from 1 over `decay_steps`. Environment i of N ends at final^(1 + spread i / (N - 1)) (Horgan et
    al. 2018, section 4.1), so that without a spread all end at `final`. `row` is the index of every environment.
    """
    decaying = 1.0 - steps.astype(jnp.float32) / max(decay_steps, 1)
    fraction = row.astype(jnp.float32) / max(num_envs - 1, 1)
    return jnp.maximum(decaying, final ** (1.0 + spread * fraction))


def apply_mask(space: gym.Space, action: Any, mask: Any) -> Any:
    """Random actions of a space, mapped onto the choices that an action mask allows; the mask None allows all.

    >>> space, mask = gym.spaces.MultiDiscrete([2, 3]), jnp.array([0, 1, 1, 0, 1])
    >>> [apply_mask(space, jnp.array([0, number]), mask).tolist() for number in range(3)]
    [[1, 0], [1, 2], [1, 0]]
    """
    if mask is None:
        return action
    if isinstance(space, gym.spaces.Dict):
        return {name: apply_mask(part, action[name], mask.get(name)) for name, part in space.items()}
    if isinstance(space, gym.spaces.Tuple):
        return tuple(apply_mask(*each) for each in zip(space, action, mask, strict=True))
    counts = choices(space)
    if counts is None:
        return action
    numbers = jnp.split(action.reshape(*mask.shape[:-1], len(counts)), len(counts), axis=-1)
    allowed = jnp.split(mask.astype(bool), np.cumsum(counts)[:-1], axis=-1)
    mapped = [nth_allowed(part, number[..., 0]) for part, number in zip(allowed, numbers, strict=True)]
    return jnp.stack(mapped, axis=-1).reshape(action.shape)


def nth_allowed(allowed: Bool[Array, "*batch choices"], number: Int[Array, "*batch"]) -> Int[Array, "*batch"]:
    """The allowed choice with index `number` modulo the count of allowed choices."""
    counts = jnp.maximum(jnp.sum(allowed, axis=-1), 1)
    index = jnp.cumsum(allowed, axis=-1) - 1
    return jnp.argmax(allowed & (index == (number % counts)[..., None]), axis=-1).astype(jnp.int32)


def _random(space: gym.Space, key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    assert space.shape is not None
    counts = choices(space)
    if counts is not None:
        sizes = np.asarray(counts, np.int32).reshape(space.shape)
        return jax.random.randint(key, (*shape, *space.shape), 0, sizes, jnp.int32)
    assert isinstance(space, gym.spaces.Box)
    if not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
        raise WeftError(f"random actions need a bounded action space, but {space} is unbounded: use finite bounds")
    low, high = (jnp.asarray(bound, jnp.float32) for bound in (space.low, space.high))
    return low + (high - low) * jax.random.uniform(key, (*shape, *space.shape), jnp.float32)
