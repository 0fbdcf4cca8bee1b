"""Arrays of typed random keys."""

from typing import Any

import jax


def fold_keys(keys: jax.Array, number: Any) -> jax.Array:
    """Folds a number into every key of an array."""
    fold_in = jax.random.fold_in
    for _ in range(keys.ndim):
        fold_in = jax.vmap(fold_in, (0, None))
    return fold_in(keys, number)
