"""From features to a distribution over actions: what the last layer of a policy is follows from the action space.

Choices (Discrete, MultiDiscrete, MultiBinary) get logits, numbers (a Box) a normal distribution, and a Dict or Tuple of
those one head per entry. With `squash` a normal distribution over a Box that is bounded everywhere keeps its bounds; a
Box that is not stays as it is without.

A mask says which choices there are: 1 for one that may be taken and 0 for one that may not. It has one entry per logit,
so for a MultiDiscrete those of all its parts one after another, and for a Dict or Tuple its structure; numbers have
none. If every choice is ruled out (as after the end of an episode, where no action is taken) all are alike.

>>> import jax, jax.numpy as jnp
>>> head = policy_head(gym.spaces.Discrete(3), 8, key=jax.random.key(0))
>>> policy = head(jnp.ones(8), mask=jnp.array([1, 0, 1], jnp.int8))
>>> jnp.exp(policy.log_prob(jnp.int32(1))).tolist()
0.0
"""

import math
from typing import Any

import equinox as eqx
import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Num

from weft.envs.spaces import map_space
from weft.errors import WeftError
from weft.nets.mlp import Linear
from weft.ops.distributions import (
    RULED_OUT,
    Categorical,
    DiagonalGaussian,
    Product,
    SquashedGaussian,
    action_size,
    choices,
)

# Small first logits and means: exploration starts out even, whatever the features (Andrychowicz et al. 2021).
POLICY_SCALE = 0.01


class CategoricalHead(eqx.Module):
    """Features to one of several choices, for each coordinate of an action."""

    logits: Linear
    counts: tuple[int, ...] = eqx.field(static=True)
    shape: tuple[int, ...] = eqx.field(static=True)

    def __call__(
        self, features: Float[Array, "*batch features"], mask: Num[Array, "*batch logits"] | None = None
    ) -> Categorical:
        logits = self.logits(features)
        if mask is not None:
            logits = jnp.where(mask.astype(bool), logits, RULED_OUT)
        return Categorical(self._by_coordinate(logits), len(self.shape))

    def _by_coordinate(self, logits: jax.Array) -> jax.Array:
        """A row of logits per coordinate; where some have fewer choices the others are ruled out."""
        batch, most = logits.shape[:-1], max(self.counts)
        if min(self.counts) < most:
            parts = jnp.split(logits, np.cumsum(self.counts)[:-1], axis=-1)
            beside = [(0, 0)] * len(batch)
            filled = [jnp.pad(x, [*beside, (0, most - x.shape[-1])], constant_values=RULED_OUT) for x in parts]
            logits = jnp.concatenate(filled, axis=-1)
        return logits.reshape(*batch, *self.shape, most)


class GaussianHead(eqx.Module):
    """Features to a normal distribution whose spread is learned, but is the same in every state."""

    mean: Linear
    log_std: Float[Array, "*shape"]
    bounds: tuple[tuple[float, ...], tuple[float, ...]] | None = eqx.field(static=True)

    def __call__(
        self, features: Float[Array, "*batch features"], mask: Any = None
    ) -> DiagonalGaussian | SquashedGaussian:
        del mask
        mean = self.mean(features).reshape(*features.shape[:-1], *self.log_std.shape)
        log_std = jnp.broadcast_to(self.log_std, mean.shape)
        if self.bounds is None:
            return DiagonalGaussian(mean, log_std, self.log_std.ndim)
        return SquashedGaussian(mean, log_std, *self.bounds, self.log_std.ndim)


class ProductHead(eqx.Module):
    """Features to the actions of a Dict or Tuple, entry by entry."""

    parts: Any

    def __call__(self, features: Float[Array, "*batch features"], mask: Any = None) -> Product:
        if mask is None:
            return Product(jax.tree.map(lambda part: part(features), self.parts, is_leaf=_is_head))
        return Product(jax.tree.map(lambda part, mask: part(features, mask), self.parts, mask, is_leaf=_is_head))


Head = CategoricalHead | GaussianHead | ProductHead


def policy_head(space: gym.Space, features: int, *, squash: bool = False, key: jax.Array) -> Head:
    """The last layer of a policy over `space`."""
    if not isinstance(space, gym.spaces.Dict | gym.spaces.Tuple):
        return _head(space, features, squash, key)
    parts, structure = jax.tree.flatten(map_space(lambda part: part, space))
    keys = jax.random.split(key, len(parts))
    heads = [_head(part, features, squash, key) for part, key in zip(parts, keys, strict=True)]
    return ProductHead(structure.unflatten(heads))


def check_mask(mask_space: gym.Space, action_space: gym.Space) -> None:
    """Refuse a mask that does not fit the actions that it is for."""
    wanted = map_space(action_size, action_space)
    given = map_space(lambda part: math.prod(part.shape or ()), mask_space)
    if jax.tree.structure(wanted) != jax.tree.structure(given):
        raise WeftError(f"action mask {mask_space} and action space {action_space} differ in structure")
    actions = jax.tree.leaves(map_space(lambda part: part, action_space))
    for action, size, entries in zip(actions, jax.tree.leaves(wanted), jax.tree.leaves(given), strict=True):
        if choices(action) is not None and size != entries:
            raise WeftError(f"action mask {mask_space} has {entries} entries for {action}, which has {size} choices")


def bounds_of(space: gym.Space) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """The bounds of a Box, flat, if every coordinate has both.

    >>> bounds_of(gym.spaces.Box(-1, 2, (2,))), bounds_of(gym.spaces.Box(0, np.inf, (2,)))
    (((-1.0, -1.0), (2.0, 2.0)), None)
    """
    assert isinstance(space, gym.spaces.Box)
    low, high = (bound.reshape(-1).astype(np.float32) for bound in (space.low, space.high))
    with np.errstate(over="ignore", invalid="ignore"):
        reach = high - low
    if not (np.isfinite(reach) & (reach > 0)).all():
        return None
    return tuple(low.tolist()), tuple(high.tolist())


def _head(space: gym.Space, features: int, squash: bool, key: jax.Array) -> CategoricalHead | GaussianHead:
    assert space.shape is not None
    last = Linear(features, action_size(space), scale=POLICY_SCALE, key=key)
    counts = choices(space)
    if counts is not None:
        return CategoricalHead(last, counts, space.shape)
    return GaussianHead(last, jnp.zeros(space.shape, jnp.float32), bounds_of(space) if squash else None)


def _is_head(part: Any) -> bool:
    return isinstance(part, CategoricalHead | GaussianHead)
