"""Distributions over actions, as pytrees of their parameters: they can be stored in a trajectory and compared later.

`policy.sample(noise)` is a deterministic function of noise that was drawn before, so that the noise of a whole rollout
is drawn at once. An action may have several independent coordinates: `rank` is the number of trailing axes that they
take up, and their log probabilities are summed. A Dict or Tuple of actions has a `Product` distribution.

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

# The logit of a masked choice: its probability is exactly 0 in float32, and no gradient becomes infinite.
MASKED_LOGIT = -1e9
# The largest float32 below 1: squashed actions that were rounded to their bound are clipped to it.
BELOW_ONE = float(np.nextafter(np.float32(1), np.float32(0)))
# Gauss-Hermite quadrature of the mean of a function of a standard normal.
QUADRATURE_POINTS, QUADRATURE_WEIGHTS = (np.asarray(x, np.float32) for x in np.polynomial.hermite_e.hermegauss(32))

HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Categorical:
    """A categorical distribution over the choices of each coordinate, by unnormalised log probabilities."""

    logits: Float[Array, "*batch_and_coordinates choices"]
    rank: int = field(default=0, metadata={"static": True})

    def sample(self, noise: Float[Array, "*batch_and_coordinates choices"]) -> Int[Array, "*batch_and_coordinates"]:
        """An exact sample from Gumbel noise (the Gumbel-max trick)."""
        return jnp.argmax(self.logits + noise, axis=-1).astype(jnp.int32)

    def mode(self) -> Int[Array, "*batch_and_coordinates"]:
        return jnp.argmax(self.logits, axis=-1).astype(jnp.int32)

    def log_prob(self, action: Int[Array, "*batch_and_coordinates"]) -> Float[Array, "*batch"]:
        log_probs = jax.nn.log_softmax(self.logits)
        # One-hot and sum, not a gather: the gradient of a gather is a scatter.
        chosen = jax.nn.one_hot(action, self.logits.shape[-1], dtype=log_probs.dtype)
        return _total(jnp.sum(log_probs * chosen, axis=-1), self.rank)

    def entropy(self) -> Float[Array, "*batch"]:
        log_probs = jax.nn.log_softmax(self.logits)
        return _total(-jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1), self.rank)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DiagonalGaussian:
    """Independent normal coordinates. Samples are unbounded; environments clip actions to their bounds."""

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
    """Normal coordinates squashed by tanh and scaled to [`low`, `high`] (Haarnoja et al. 2018b, appendix C).

    The bounds are static: flat tuples with one entry per coordinate.
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
        """A sample and its log probability, computed before squashing: exact near the bounds, and differentiable."""
        x = self._inner.sample(noise)
        return self._squash(x), self._log_prob(x)

    def mode(self) -> Float[Array, "*batch_and_coordinates"]:
        """The squashed mean of the normal: the median, not the point of highest density."""
        return self._squash(self.mean)

    def log_prob(self, action: Float[Array, "*batch_and_coordinates"]) -> Float[Array, "*batch"]:
        middle, reach = self._middle_and_reach()
        return self._log_prob(jnp.arctanh(jnp.clip((action - middle) / reach, -BELOW_ONE, BELOW_ONE)))

    def entropy(self) -> Float[Array, "*batch"]:
        """The entropy of the normal plus the expected log slope of the squashing, by quadrature."""
        x = self.mean[..., None] + jnp.exp(self.log_std)[..., None] * QUADRATURE_POINTS
        slope = jnp.sum(_log_slope(x) * (QUADRATURE_WEIGHTS / QUADRATURE_WEIGHTS.sum()), axis=-1)
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
        # Rounding must not take an action out of its bounds.
        return jnp.clip(middle + reach * jnp.tanh(x), middle - reach, middle + reach)

    def _middle_and_reach(self) -> tuple[np.ndarray, np.ndarray]:
        shape = self.mean.shape[self.mean.ndim - self.rank :]
        low, high = (np.asarray(bound, np.float32).reshape(shape) for bound in (self.low, self.high))
        return (low + high) / 2, (high - low) / 2


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Product:
    """Independent distributions in a dictionary or a tuple; actions and noise have the same structure."""

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
    """The noise from which a policy samples actions, with leading axes `shape`, in the structure of the space."""
    parts, structure = jax.tree.flatten(map_space(lambda part: part, space))
    keys = [key] if len(parts) == 1 else jax.random.split(key, len(parts))
    return structure.unflatten(_draw(part, key, shape) for part, key in zip(parts, keys, strict=True))


def choices(space: gym.Space) -> tuple[int, ...] | None:
    """The number of choices of each coordinate of a discrete space, in order; None for a continuous space.

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
    """The number of outputs of a policy: logits of a discrete space, coordinates of a Box."""
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
    """log(1 - tanh(x)^2) without cancellation where tanh(x) is nearly 1."""
    return 2.0 * (math.log(2.0) - x - jax.nn.softplus(-2.0 * x))
