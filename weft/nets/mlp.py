"""Multi-layer perceptrons whose leaves are all arrays, so that `jax.grad`, `lax.scan` and optax accept them."""

from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

Activation = Literal["tanh", "relu"]

ACTIVATIONS = {"tanh": jnp.tanh, "relu": jax.nn.relu}


class Linear(eqx.Module):
    """An affine map of the last axis with orthogonal initial weights."""

    weight: Float[Array, "inputs outputs"]
    bias: Float[Array, " outputs"]

    def __init__(self, inputs: int, outputs: int, *, scale: float, key: jax.Array):
        self.weight = jax.nn.initializers.orthogonal(scale)(key, (inputs, outputs), jnp.float32)
        self.bias = jnp.zeros(outputs, jnp.float32)

    def __call__(self, x: Float[Array, "*batch inputs"]) -> Float[Array, "*batch outputs"]:
        return x @ self.weight + self.bias


class MLP(eqx.Module):
    """Linear layers, each followed by the activation."""

    layers: tuple[Linear, ...]
    activation: Activation = eqx.field(static=True)

    def __init__(self, inputs: int, hidden: tuple[int, ...], *, activation: Activation, key: jax.Array):
        sizes = (inputs, *hidden)
        keys = jax.random.split(key, max(len(hidden), 1))
        # A gain of sqrt(2) preserves the variance of activations across ReLU layers (Saxe et al. 2014).
        self.layers = tuple(
            Linear(sizes[i], sizes[i + 1], scale=float(np.sqrt(2)), key=keys[i]) for i in range(len(hidden))
        )
        self.activation = activation

    def __call__(self, x: Float[Array, "*batch inputs"]) -> Float[Array, "*batch features"]:
        for layer in self.layers:
            x = ACTIVATIONS[self.activation](layer(x))
        return x
