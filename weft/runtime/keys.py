"""Typed random keys as arrays."""

from typing import Any

import jax


def fold_keys(key: jax.Array, number: Any) -> jax.Array:
    """Every key of an array folded with a number."""
    fold_in = jax.random.fold_in
    for _ in range(key.ndim):
        fold_in = jax.vmap(fold_in, (0, None))
    return fold_in(key, number)
