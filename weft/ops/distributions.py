"""Distributions over actions, as pytrees of their parameters: they can be stored in a trajectory and compared later.

Sampling is a function of noise that was drawn before: `policy.sample(noise)` is then cheap inside a loop, and the draw
for all its steps is one. An action may have several coordinates, and `rank` says how many of the last axes they take
up: they are independent, so their log probabilities add up. A Dict or Tuple of actions is a `Product`, likewise.

>>> import jax, jax.numpy as jnp
>>> policy = Categorical(jnp.array([[0.0, 100.0]]))
>>> space = gym.spaces.Discrete(2)
>>> policy.sample(draw_noise(space, jax.random.key(0), (1,))).tolist()
[1]
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from weft.envs.spaces import map_space
from weft.errors import WeftError

# The logit of a choice that is ruled out: its probability is exactly 0 in float32, and nothing becomes infinite.
RULED_OUT = -1e9
# The largest float32 below 1: what is kept of a squashed action that was rounded to its bound.
BELOW_ONE = float(np.nextafter(np.float32(1), np.float32(0)))
# Points and weights with which the mean of a function of a standard normal is a sum (Gauss-Hermite quadrature).
POINTS, WEIGHTS = (np.asarray(x, np.float32) for x in np.polynomial.hermite_e.hermegauss(32))

HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Categorical:
    """One of several choices for each coordinate, by unnormalised log probabilities."""

    logits: Float[Array, "*batch_and_coordinates choices"]
    rank: int = field(default=0, metadata={"static": True})

    def sample(self, noise: Float[Array, "*batch_and_coordinates choices"]) -> Int[Array, "*batch_and_coordinates"]:
        """The Gumbel-max draw: exact, given Gumbel noise."""
        return jnp.argmax(self.logits + noise, axis=-1).astype(jnp.int32)

    def mode(self) -> Int[Array, "*batch_and_coordinates"]:
        return jnp.argmax(self.logits, axis=-1).astype(jnp.int32)

    def log_prob(self, action: Int[Array, "*batch_and_coordinates"]) -> Float[Array, "*batch"]:
        log_probs = jax.nn.log_softmax(self.logits)
        # One-hot and sum, not a gather: its gradient is then a product, not a scatter.
        chosen = jax.nn.one_hot(action, self.logits.shape[-1], dtype=log_probs.dtype)
        return _total(jnp.sum(log_probs * chosen, axis=-1), self.rank)

    def entropy(self) -> Float[Array, "*batch"]:
        log_probs = jax.nn.log_softmax(self.logits)
        return _total(-jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1), self.rank)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DiagonalGaussian:
    """Independent normal coordinates. Samples are unbounded; an environment clips what it is given."""

    mean: Float[Array, "*batch_and_coordinates"]
    log_std: Float[Array, "*batch_and_coordinates"]
    rank: int = field(default=1, metadata={"static": True})

    def sample(self, noise: Float[Array, "*batch_and_coordinates"]) -> Float[Array, "*batch_and_coordinates"]:
        return self.mean + jnp.exp(self.log_std) * noise

    def mode(self) -> Float[Array, "*batch_and_coordinates"]:
        return self.mean

    def log_prob(self, action: Float[Array, "*batch_and_coordinates"]) -> Float[Array, "*batch"]:
        scaled = (action - self.mean) * jnp.exp(-self.log_std)
        return -_total(0.5 * jnp.square(scaled) + self.log_std + HALF_LOG_TAU, self.rank)

    def entropy(self) -> Float[Array, "*batch"]:
        return _total(self.log_std + (0.5 + HALF_LOG_TAU), self.rank)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SquashedGaussian:
    """Normal coordinates sent through tanh and stretched onto [`low`, `high`] (Haarnoja et al. 2018, appendix C).

    The bounds are part of the program, not of the data: flat tuples, one entry per coordinate.
    """

    mean: Float[Array, "*batch_and_coordinates"]
    log_std: Float[Array, "*batch_and_coordinates"]
    low: tuple[float, ...] = field(metadata={"static": True})
    high: tuple[float, ...] = field(metadata={"static": True})
    rank: int = field(default=1, metadata={"static": True})

    def sample(self, noise: Float[Array, "*batch_and_coordinates"]) -> Float[Array, "*batch_and_coordinates"]:
        return self._squash(self._inner.sample(noise))

    def sample_and_log_prob(
        self, noise: Float[Array, "*batch_and_coordinates"]
    ) -> tuple[Float[Array, "*batch_and_coordinates"], Float[Array, "*batch"]]:
        """A sample with its log probability from before it was squashed: exact near the bounds, and differentiable."""
        x = self._inner.sample(noise)
        return self._squash(x), self._log_prob(x)

    def mode(self) -> Float[Array, "*batch_and_coordinates"]:
        """The middle of the mass: the mode of the normal, squashed."""
        return self._squash(self.mean)

    def log_prob(self, action: Float[Array, "*batch_and_coordinates"]) -> Float[Array, "*batch"]:
        middle, reach = self._middle_and_reach()
        return self._log_prob(jnp.arctanh(jnp.clip((action - middle) / reach, -BELOW_ONE, BELOW_ONE)))

    def entropy(self) -> Float[Array, "*batch"]:
        """That of the normal plus the mean of the logarithm of the squashing's slope, by quadrature."""
        x = self.mean[..., None] + jnp.exp(self.log_std)[..., None] * POINTS
        slope = jnp.sum(_log_slope(x) * (WEIGHTS / WEIGHTS.sum()), axis=-1)
        _, reach = self._middle_and_reach()
        return self._inner.entropy() + _total(slope + np.log(reach), self.rank)

    @property
    def _inner(self) -> DiagonalGaussian:
        return DiagonalGaussian(self.mean, self.log_std, self.rank)

    def _log_prob(self, x: jax.Array) -> jax.Array:
        _, reach = self._middle_and_reach()
        return self._inner.log_prob(x) - _total(_log_slope(x) + np.log(reach), self.rank)

    def _squash(self, x: jax.Array) -> jax.Array:
        middle, reach = self._middle_and_reach()
        # The stretch rounds, and must not leave the space by that.
        return jnp.clip(middle + reach * jnp.tanh(x), middle - reach, middle + reach)

    def _middle_and_reach(self) -> tuple[np.ndarray, np.ndarray]:
        shape = self.mean.shape[self.mean.ndim - self.rank :]
        low, high = (np.asarray(bound, np.float32).reshape(shape) for bound in (self.low, self.high))
        return (low + high) / 2, (high - low) / 2


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Product:
    """Independent distributions in a dictionary or a tuple: actions and noise have the same structure."""

    parts: Any

    def sample(self, noise: Any) -> Any:
        return self._each(lambda part, noise: part.sample(noise), noise)

    def mode(self) -> Any:
        return self._each(lambda part: part.mode())

    def log_prob(self, action: Any) -> Float[Array, "*batch"]:
        return self._sum(lambda part, action: part.log_prob(action), action)

    def entropy(self) -> Float[Array, "*batch"]:
        return self._sum(lambda part: part.entropy())

    def _each(self, function: Callable[..., Any], *trees: Any) -> Any:
        return jax.tree.map(function, self.parts, *trees, is_leaf=lambda part: isinstance(part, Distribution))

    def _sum(self, function: Callable[..., jax.Array], *trees: Any) -> jax.Array:
        return functools.reduce(jnp.add, jax.tree.leaves(self._each(function, *trees)))


Distribution = Categorical | DiagonalGaussian | SquashedGaussian | Product


def draw_noise(space: gym.Space, key: jax.Array, shape: tuple[int, ...]) -> Any:
    """The noise with which a policy over `space` samples `shape` actions, in the structure of the space."""
    parts, structure = jax.tree.flatten(map_space(lambda part: part, space))
    keys = [key] if len(parts) == 1 else jax.random.split(key, len(parts))
    return structure.unflatten(_draw(part, key, shape) for part, key in zip(parts, keys, strict=True))


def choices(space: gym.Space) -> tuple[int, ...] | None:
    """How many choices there are for each coordinate of a space, in order; None for numbers.

    >>> choices(gym.spaces.Discrete(3)), choices(gym.spaces.MultiDiscrete([2, 4])), choices(gym.spaces.Box(0, 1, (2,)))
    ((3,), (2, 4), None)
    """
    if isinstance(space, gym.spaces.Discrete):
        return (int(space.n),)
    if isinstance(space, gym.spaces.MultiDiscrete):
        return tuple(int(n) for n in space.nvec.reshape(-1))
    if isinstance(space, gym.spaces.MultiBinary):
        return (2,) * math.prod(space.shape)
    return None


def action_size(space: gym.Space) -> int:
    """The number of logits for choices, of coordinates for a Box."""
    counts = choices(space)
    if counts is not None:
        return sum(counts)
    if isinstance(space, gym.spaces.Box):
        return math.prod(space.shape)
    raise WeftError(
        f"no policy for action space {space}: "
        "it must be Discrete, MultiDiscrete, MultiBinary or Box, or a Dict or Tuple of those"
    )


def _draw(space: gym.Space, key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    assert space.shape is not None
    counts = choices(space)
    if counts is None:
        return jax.random.normal(key, (*shape, *space.shape), jnp.float32)
    return jax.random.gumbel(key, (*shape, *space.shape, max(counts)), jnp.float32)


def _total(x: jax.Array, rank: int) -> jax.Array:
    """The sum over the last `rank` axes."""
    return jnp.sum(x, axis=tuple(range(x.ndim - rank, x.ndim))) if rank else x


def _log_slope(x: jax.Array) -> jax.Array:
    """log(1 - tanh(x)^2), without the cancellation that this form has where tanh is nearly 1."""
    return 2.0 * (math.log(2.0) - x - jax.nn.softplus(-2.0 * x))
