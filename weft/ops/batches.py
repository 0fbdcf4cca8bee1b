"""From trajectories to minibatches."""

from typing import TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from weft.errors import WeftError

T = TypeVar("T")


def fold_time(tree: T) -> T:
    """Leaves [T, B, ...] as rows [T * B, ...]."""
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), tree)


def swap_time(tree: T) -> T:
    """Leaves [T, B, ...] as rows of whole environments, [B, T, ...]."""
    return jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), tree)


def take_rows(tree: T, rows: Int[Array, " n"]) -> T:
    """The given rows of every leaf."""
    return jax.tree.map(lambda x: x[rows], tree)


def shuffled(key: jax.Array, rows: int, *, epochs: int, minibatches: int) -> Int[Array, "updates size"]:
    """Row numbers of every minibatch of every epoch; each epoch is a shuffle of all the rows."""
    if rows % minibatches:
        raise WeftError(
            f"{rows} rows (horizon x environments; with a memory environments alone) cannot be cut into {minibatches} "
            f"equal minibatches: change minibatches, horizon or num_envs so that it divides"
        )
    # All epochs in one batched sort: as many separate ones would wait for each other.
    orders = jax.vmap(lambda key: jax.random.permutation(key, rows))(jax.random.split(key, epochs))
    return orders.reshape(epochs * minibatches, rows // minibatches)
