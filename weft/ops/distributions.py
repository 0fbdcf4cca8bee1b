"""Distributions over actions, as pytrees of their parameters: they can be stored in a trajectory and compared later.

Sampling is a function of noise that was drawn before: `policy.sample(noise)` is then cheap inside a loop, and the draw
for all its steps is one.

>>> import jax, jax.numpy as jnp
>>> policy = Categorical(jnp.array([[0.0, 100.0]]))
>>> space = gym.spaces.Discrete(2)
>>> policy.sample(draw_noise(space, jax.random.key(0), (1,))).tolist()
[1]
"""

import math
from dataclasses import dataclass

import gymnasium as gym
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from weft.errors import WeftError


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Categorical:
    """One of several actions, by unnormalised log probabilities."""

    logits: Float[Array, "*batch actions"]

    def sample(self, noise: Float[Array, "*batch actions"]) -> Int[Array, "*batch"]:
        """The Gumbel-max draw: exact, given Gumbel noise."""
        return jnp.argmax(self.logits + noise, axis=-1).astype(jnp.int32)

    def log_prob(self, action: Int[Array, "*batch"]) -> Float[Array, "*batch"]:
        log_probs = jax.nn.log_softmax(self.logits)
        # One-hot and sum, not a gather: its gradient is then a product, not a scatter.
        return jnp.sum(log_probs * jax.nn.one_hot(action, self.logits.shape[-1], dtype=log_probs.dtype), axis=-1)

    def entropy(self) -> Float[Array, "*batch"]:
        log_probs = jax.nn.log_softmax(self.logits)
        return -jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DiagonalGaussian:
    """Independent normal coordinates. Samples are unbounded; an environment clips what it is given."""

    mean: Float[Array, "*batch size"]
    log_std: Float[Array, "*batch size"]

    def sample(self, noise: Float[Array, "*batch size"]) -> Float[Array, "*batch size"]:
        return self.mean + jnp.exp(self.log_std) * noise

    def log_prob(self, action: Float[Array, "*batch size"]) -> Float[Array, "*batch"]:
        scaled = (action - self.mean) * jnp.exp(-self.log_std)
        return -jnp.sum(0.5 * jnp.square(scaled) + self.log_std + 0.5 * math.log(2 * math.pi), axis=-1)

    def entropy(self) -> Float[Array, "*batch"]:
        return jnp.sum(self.log_std + 0.5 * math.log(2 * math.pi * math.e), axis=-1)


Distribution = Categorical | DiagonalGaussian


def draw_noise(space: gym.Space, key: jax.Array, shape: tuple[int, ...]) -> Float[Array, "*shape size"]:
    """The noise with which a policy over `space` samples `shape` actions."""
    size = action_size(space)
    draw = jax.random.gumbel if isinstance(space, gym.spaces.Discrete) else jax.random.normal
    return draw(key, (*shape, size), jnp.float32)


def action_size(space: gym.Space) -> int:
    """The number of logits for a Discrete space, of coordinates for a Box."""
    if isinstance(space, gym.spaces.Discrete):
        return int(space.n)
    if isinstance(space, gym.spaces.Box) and len(space.shape) == 1:
        return space.shape[0]
    raise WeftError(f"no policy for action space {space}: it must be Discrete or a Box of one axis")
