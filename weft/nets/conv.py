"""Convolutional networks for images: that of the Nature DQN paper, and the residual network of IMPALA.

Images may have any leading axes before height, width and channels. `sides` is (height, width).

>>> import jax, jax.numpy as jnp
>>> net = Nature((36, 36), 4, key=jax.random.key(0))
>>> net(jnp.zeros((2, 3, 36, 36, 4))).shape
(2, 3, 512)
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from weft.nets.mlp import Linear

GAIN = float(np.sqrt(2))


class Conv(eqx.Module):
    """A convolution over height and width with orthogonal initial weights."""

    weight: Float[Array, "height width inputs outputs"]
    bias: Float[Array, " outputs"]
    stride: int = eqx.field(static=True)
    padding: str = eqx.field(static=True)

    def __init__(self, inputs: int, outputs: int, *, size: int, stride: int, padding: str, key: jax.Array):
        self.weight = jax.nn.initializers.orthogonal(GAIN)(key, (size, size, inputs, outputs), jnp.float32)
        self.bias = jnp.zeros(outputs, jnp.float32)
        self.stride, self.padding = stride, padding

    def __call__(self, x: Float[Array, "batch height width inputs"]) -> Float[Array, "batch rows columns outputs"]:
        strides = (self.stride, self.stride)
        layout = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(x, self.weight, strides, self.padding, dimension_numbers=layout) + self.bias


class Nature(eqx.Module):
    """Three convolutions and a layer of 512 features (Mnih et al. 2015)."""

    layers: tuple[Conv, ...]
    last: Linear
    size: int = eqx.field(static=True)

    SMALLEST = 36
    """The shortest side for which the last convolution has an input."""

    def __init__(self, sides: tuple[int, int], channels: int, *, key: jax.Array):
        *keys, key_last = jax.random.split(key, 4)
        shapes = ((channels, 32, 8, 4), (32, 64, 4, 2), (64, 64, 3, 1))
        self.layers = tuple(
            Conv(inputs, outputs, size=size, stride=stride, padding="VALID", key=key)
            for (inputs, outputs, size, stride), key in zip(shapes, keys, strict=True)
        )
        for _, _, size, stride in shapes:
            sides = ((sides[0] - size) // stride + 1, (sides[1] - size) // stride + 1)
        self.size = 512
        self.last = Linear(sides[0] * sides[1] * 64, self.size, scale=GAIN, key=key_last)

    def __call__(self, x: Float[Array, "*batch height width channels"]) -> Float[Array, "*batch features"]:
        batch, x = _flatten_batch(x)
        for layer in self.layers:
            x = jax.nn.relu(layer(x))
        return _features(self.last, batch, x)


class Residual(eqx.Module):
    """A residual block of two convolutions."""

    first: Conv
    second: Conv

    def __init__(self, channels: int, *, key: jax.Array):
        key_first, key_second = jax.random.split(key)
        self.first = Conv(channels, channels, size=3, stride=1, padding="SAME", key=key_first)
        self.second = Conv(channels, channels, size=3, stride=1, padding="SAME", key=key_second)

    def __call__(self, x: Float[Array, "batch height width channels"]) -> Float[Array, "batch height width channels"]:
        return x + self.second(jax.nn.relu(self.first(jax.nn.relu(x))))


class Impala(eqx.Module):
    """Fifteen convolutions in three residual sections and a layer of 256 features (Espeholt et al. 2018, figure 3)."""

    sections: tuple[tuple[Conv, Residual, Residual], ...]
    last: Linear
    size: int = eqx.field(static=True)

    SMALLEST = 1
    """The padding makes any size possible."""

    def __init__(self, sides: tuple[int, int], channels: int, *, key: jax.Array):
        *keys, key_last = jax.random.split(key, 4)
        widths = (channels, 16, 32, 32)
        self.sections = tuple(_section(widths[i], widths[i + 1], keys[i]) for i in range(3))
        for _ in self.sections:
            sides = (-(-sides[0] // 2), -(-sides[1] // 2))
        self.size = 256
        self.last = Linear(sides[0] * sides[1] * widths[-1], self.size, scale=GAIN, key=key_last)

    def __call__(self, x: Float[Array, "*batch height width channels"]) -> Float[Array, "*batch features"]:
        batch, x = _flatten_batch(x)
        for conv, first, second in self.sections:
            x = second(first(_max_pool(conv(x))))
        return _features(self.last, batch, jax.nn.relu(x))


def _section(inputs: int, outputs: int, key: jax.Array) -> tuple[Conv, Residual, Residual]:
    key_conv, key_first, key_second = jax.random.split(key, 3)
    conv = Conv(inputs, outputs, size=3, stride=1, padding="SAME", key=key_conv)
    return conv, Residual(outputs, key=key_first), Residual(outputs, key=key_second)


def _max_pool(x: jax.Array) -> jax.Array:
    """Max pooling over 3x3 windows with stride 2."""
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")


def _flatten_batch(x: jax.Array) -> tuple[tuple[int, ...], jax.Array]:
    return x.shape[:-3], x.reshape(-1, *x.shape[-3:])


def _features(last: Linear, batch: tuple[int, ...], x: jax.Array) -> jax.Array:
    features = jax.nn.relu(last(x.reshape(len(x), -1)))
    return features.reshape(*batch, -1)
