"""Policy heads: map features to a distribution over actions. The head depends on the action space.

Discrete, MultiDiscrete and MultiBinary actions get logits, a Box gets a normal distribution, and a Dict or Tuple gets
one head per entry. With `squash` the normal distribution over a bounded Box is squashed onto its bounds; an unbounded
Box is not affected.

An action mask is 1 for each valid action and 0 for each invalid one. It has one entry per logit: for a MultiDiscrete
the entries of all its parts concatenated, and for a Dict or Tuple one mask per entry. The mask of a Box is ignored, and
a Dict may omit entries without a mask. If all actions are invalid (as after the end of an episode, where no action is
taken), all are equally likely.

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

from weft.errors import WeftError
from weft.nets.mlp import Linear
from weft.ops.distributions import (
    MASKED_LOGIT,
    Categorical,
    DiagonalGaussian,
    Product,
    SquashedGaussian,
    action_size,
    choices,
)

# Small initial logits and means make the initial policy nearly uniform for any features (Andrychowicz et al. 2021).
POLICY_SCALE = 0.01


class CategoricalHead(eqx.Module):
    """Maps features to a categorical distribution for each coordinate of an action."""

    logits: Linear
    counts: tuple[int, ...] = eqx.field(static=True)
    shape: tuple[int, ...] = eqx.field(static=True)

    def __call__(
        self, features: Float[Array, "*batch features"], mask: Num[Array, "*batch logits"] | None = None
    ) -> Categorical:
        logits = self.logits(features)
        if mask is not None:
            logits = jnp.where(mask.astype(bool), logits, MASKED_LOGIT)
        return Categorical(self._by_coordinate(logits), len(self.shape))

    def _by_coordinate(self, logits: jax.Array) -> jax.Array:
        """Returns one row of logits per coordinate, padded with `MASKED_LOGIT` to the same length."""
        batch, longest = logits.shape[:-1], max(self.counts)
        if min(self.counts) < longest:
            parts = jnp.split(logits, np.cumsum(self.counts)[:-1], axis=-1)
            no_padding = [(0, 0)] * len(batch)
            padded = [
                jnp.pad(x, [*no_padding, (0, longest - x.shape[-1])], constant_values=MASKED_LOGIT) for x in parts
            ]
            logits = jnp.concatenate(padded, axis=-1)
        return logits.reshape(*batch, *self.shape, longest)


class GaussianHead(eqx.Module):
    """Maps features to a normal distribution with a trained standard deviation that is the same in every state."""

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
    """Maps features to the actions of a Dict or Tuple, with one head per entry."""

    parts: dict[str, Any] | tuple[Any, ...]

    def __call__(self, features: Float[Array, "*batch features"], mask: Any = None) -> Product:
        if isinstance(self.parts, dict):
            return Product({name: part(features, (mask or {}).get(name)) for name, part in self.parts.items()})
        masks = (None,) * len(self.parts) if mask is None else mask
        return Product(tuple(part(features, mask) for part, mask in zip(self.parts, masks, strict=True)))


Head = CategoricalHead | GaussianHead | ProductHead


def policy_head(space: gym.Space, features: int, *, squash: bool = False, key: jax.Array) -> Head:
    """Returns the last layer of a policy over `space`."""
    if isinstance(space, gym.spaces.Dict):
        keys = jax.random.split(key, len(space.spaces))
        parts = zip(space.spaces.items(), keys, strict=True)
        return ProductHead({name: policy_head(part, features, squash=squash, key=k) for (name, part), k in parts})
    if isinstance(space, gym.spaces.Tuple):
        keys = jax.random.split(key, len(space.spaces))
        parts = zip(space.spaces, keys, strict=True)
        return ProductHead(tuple(policy_head(part, features, squash=squash, key=k) for part, k in parts))
    return _head(space, features, squash, key)


def check_mask(mask: gym.Space, actions: gym.Space) -> None:
    """Raises `WeftError` if a space of action masks does not fit the action space."""
    if isinstance(actions, gym.spaces.Dict) and isinstance(mask, gym.spaces.Dict) and set(mask) <= set(actions):
        for name, part in mask.items():
            check_mask(part, actions[name])
    elif isinstance(actions, gym.spaces.Tuple) and isinstance(mask, gym.spaces.Tuple) and len(mask) == len(actions):
        for part, action in zip(mask, actions, strict=True):
            check_mask(part, action)
    elif isinstance(actions, gym.spaces.Dict | gym.spaces.Tuple) or mask.shape is None:
        raise WeftError(f"action mask {mask} does not have the structure of the actions {actions}")
    elif choices(actions) is not None and math.prod(mask.shape) != action_size(actions):
        entries, expected = math.prod(mask.shape), action_size(actions)
        raise WeftError(f"action mask {mask} has {entries} entries for {actions}, which needs {expected}")


def bounds_of(space: gym.Space) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Returns the flat bounds of a Box, or None unless all are finite and low < high.

    >>> bounds_of(gym.spaces.Box(-1, 2, (2,))), bounds_of(gym.spaces.Box(0, np.inf, (2,)))
    (((-1.0, -1.0), (2.0, 2.0)), None)
    """
    assert isinstance(space, gym.spaces.Box)
    low, high = (bound.reshape(-1).astype(np.float32) for bound in (space.low, space.high))
    with np.errstate(over="ignore", invalid="ignore"):
        width = high - low
    if not (np.isfinite(width) & (width > 0)).all():
        return None
    return tuple(low.tolist()), tuple(high.tolist())


def _head(space: gym.Space, features: int, squash: bool, key: jax.Array) -> CategoricalHead | GaussianHead:
    assert space.shape is not None
    last = Linear(features, action_size(space), scale=POLICY_SCALE, key=key)
    counts = choices(space)
    if counts is not None:
        return CategoricalHead(last, counts, space.shape)
    return GaussianHead(last, jnp.zeros(space.shape, jnp.float32), bounds_of(space) if squash else None)
