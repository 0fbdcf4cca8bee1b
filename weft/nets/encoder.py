"""Encodes observations of any space as features. The first layers of a network depend on the observation space:

- a Box is flattened; bytes are divided by 255 here, on the device, and not before;
- an image (a Box of bytes with three axes, both sides at least 36) goes through its own convolutional network. Its
  channel axis is the shorter of the first and the last axis, and the last if they are equal;
- Discrete and MultiDiscrete are one-hot encoded, MultiBinary is flattened;
- the entries of a Dict or Tuple are encoded separately and concatenated.

`torso` overrides the second rule: with "mlp" no Box is an image; with "nature" or "impala" any Box with three axes is.

A Dict with exactly the keys `observation` and `action_mask` is an observation with an action mask. The mask is not
encoded; the policy uses it to rule out the actions that it marks 0.

>>> import jax, jax.numpy as jnp
>>> space = gym.spaces.Dict(place=gym.spaces.Discrete(5), speed=gym.spaces.Box(-1, 1, (2,)))
>>> encoder = Encoder(space, key=jax.random.key(0))
>>> encoder({"place": jnp.array([3]), "speed": jnp.array([[0.5, -0.5]])}).tolist()
[[0.0, 0.0, 0.0, 1.0, 0.0, 0.5, -0.5]]
"""

import math
from typing import Any, Literal

import equinox as eqx
import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Num

from weft.envs.spaces import map_space
from weft.errors import WeftError
from weft.nets.conv import Impala, Nature
from weft.ops.distributions import choices

TorsoKind = Literal["auto", "mlp", "nature", "impala"]
NETWORKS = {"auto": Nature, "nature": Nature, "impala": Impala}


class NumericEncoder(eqx.Module):
    """Flattens numbers, and rescales bytes to 0 to 1."""

    rank: int = eqx.field(static=True)
    size: int = eqx.field(static=True)

    def __call__(self, x: Num[Array, "*batch_and_shape"]) -> Float[Array, "*batch size"]:
        return to_float(x).reshape(*x.shape[: x.ndim - self.rank], -1)


class OneHotEncoder(eqx.Module):
    """One-hot encodes discrete values and concatenates the results. The values of entry i start at `starts[i]`."""

    rank: int = eqx.field(static=True)
    counts: tuple[int, ...] = eqx.field(static=True)
    starts: tuple[int, ...] = eqx.field(static=True)

    @property
    def size(self) -> int:
        return sum(self.counts)

    def __call__(self, x: Int[Array, "*batch_and_shape"]) -> Float[Array, "*batch size"]:
        flat = x.reshape(*x.shape[: x.ndim - self.rank], len(self.counts))
        entry = np.repeat(np.arange(len(self.counts)), self.counts)
        value = np.concatenate([start + np.arange(n) for start, n in zip(self.starts, self.counts, strict=True)])
        return (flat[..., entry] == value.astype(x.dtype)).astype(jnp.float32)


class ImageEncoder(eqx.Module):
    """Encodes images by a convolutional network."""

    network: Nature | Impala
    channels_first: bool = eqx.field(static=True)

    @property
    def size(self) -> int:
        return self.network.size

    def __call__(self, x: Num[Array, "*batch_and_shape"]) -> Float[Array, "*batch size"]:
        return self.network(to_float(jnp.moveaxis(x, -3, -1) if self.channels_first else x))


class Encoder(eqx.Module):
    """Encodes observations of a space as one vector of `size` features."""

    entries: Any

    def __init__(self, space: gym.Space, *, torso: TorsoKind = "auto", key: jax.Array):
        if torso in ("nature", "impala") and not has_images(space, torso):
            raise WeftError(f"torso={torso} needs images (a Box with three axes), and {space} has none: use torso=auto")
        entries, structure = _entries(space)
        keys = jax.random.split(key, len(entries))
        self.entries = structure.unflatten(
            _encoder(entry, torso, key) for entry, key in zip(entries, keys, strict=True)
        )

    @property
    def size(self) -> int:
        return sum(entry.size for entry in jax.tree.leaves(self.entries, is_leaf=_is_encoder))

    def __call__(self, obs: Any) -> Float[Array, "*batch size"]:
        features = jax.tree.leaves(jax.tree.map(lambda entry, x: entry(x), self.entries, obs, is_leaf=_is_encoder))
        return features[0] if len(features) == 1 else jnp.concatenate(features, axis=-1)


def has_images(space: gym.Space, torso: TorsoKind) -> bool:
    """Whether any entry of a space goes through a convolutional network."""
    return any(_is_image(entry, torso) for entry in _entries(space)[0])


def to_float(x: Num[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Converts to float32, and rescales bytes to 0 to 1."""
    return x.astype(jnp.float32) / 255.0 if x.dtype == jnp.uint8 else x.astype(jnp.float32)


def _entries(space: gym.Space) -> tuple[list[gym.Space], Any]:
    return jax.tree.flatten(map_space(lambda entry: entry, space))


def _encoder(space: gym.Space, torso: TorsoKind, key: jax.Array) -> NumericEncoder | OneHotEncoder | ImageEncoder:
    assert space.shape is not None
    if _is_image(space, torso):
        return _image(space, torso, key)
    counts = choices(space)
    if counts is None or isinstance(space, gym.spaces.MultiBinary):
        return NumericEncoder(len(space.shape), math.prod(space.shape))
    starts = np.broadcast_to(np.asarray(getattr(space, "start", 0)), space.shape).reshape(-1)
    return OneHotEncoder(len(space.shape), counts, tuple(int(start) for start in starts))


def _is_image(space: gym.Space, torso: TorsoKind) -> bool:
    if torso == "mlp" or not isinstance(space, gym.spaces.Box) or len(space.shape) != 3:
        return False
    return torso != "auto" or (space.dtype == np.uint8 and min(_sides(space.shape)) >= Nature.SMALLEST)


def _image(space: gym.Space, torso: TorsoKind, key: jax.Array) -> ImageEncoder:
    assert space.shape is not None
    network, sides = NETWORKS[torso], _sides(space.shape)
    if min(sides) < network.SMALLEST:
        raise WeftError(
            f"torso={torso} needs images of at least {network.SMALLEST} pixels per side, and {space} has "
            f"{sides[0]}x{sides[1]}: use torso=impala for small images, or torso=mlp"
        )
    first = _channels_first(space.shape)
    return ImageEncoder(network(sides, space.shape[0 if first else -1], key=key), first)


def _channels_first(shape: tuple[int, ...]) -> bool:
    return shape[0] < shape[-1]


def _sides(shape: tuple[int, ...]) -> tuple[int, int]:
    return (shape[1], shape[2]) if _channels_first(shape) else (shape[0], shape[1])


def _is_encoder(entry: Any) -> bool:
    return isinstance(entry, NumericEncoder | OneHotEncoder | ImageEncoder)
