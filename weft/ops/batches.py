"""From trajectories to minibatches, and the shapes and weights of batches from a replay table."""

from typing import TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from weft.errors import WeftError

T = TypeVar("T")


def fold_time(tree: T) -> T:
    """Leaves [T, B, ...] as rows [T * B, ...]."""
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), tree)


def swap_time(tree: T) -> T:
    """Leaves [T, B, ...] as one row per environment, [B, T, ...]."""
    return jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), tree)


def take_rows(tree: T, rows: Int[Array, " n"]) -> T:
    """The given rows of every leaf."""
    return jax.tree.map(lambda x: x[rows], tree)


def shuffled(key: jax.Array, rows: int, *, epochs: int, minibatches: int) -> Int[Array, "updates size"]:
    """Row indices of every minibatch of every epoch; each epoch is a permutation of all rows."""
    if rows % minibatches:
        raise WeftError(
            f"{rows} rows (horizon x environments; with a memory environments alone) cannot be divided into "
            f"{minibatches} equal minibatches: change minibatches, horizon or num_envs so that it divides"
        )
    # One batched sort for all epochs: separate sorts would run one after the other.
    orders = jax.vmap(lambda key: jax.random.permutation(key, rows))(jax.random.split(key, epochs))
    return orders.reshape(epochs * minibatches, rows // minibatches)


def batch_shape(batch_size: int, *, num_envs: int, total_envs: int) -> tuple[int, ...]:
    """The shape of a replica's batch: its share of `batch_size`, by its share of the environments.

    If the share is a multiple of the replica's environments, the first axis is that of the environments: replicas can
    then divide the batch.
    """
    size, remainder = divmod(batch_size * num_envs, total_envs)
    if remainder:
        raise WeftError(
            f"batch_size={batch_size} cannot be divided like {total_envs} environments, {num_envs} to a replica: make "
            "it a multiple of the replicas"
        )
    return (size,) if size % num_envs else (num_envs, size // num_envs)


def importance_weights(probability: Float[Array, " B"], beta: float | None) -> Float[Array, " B"]:
    """The weights that correct for prioritised sampling (Schaul et al. 2016, section 3.4), at most 1.

    `probability` is that of sampling each item. Without a `beta`, sampling was uniform and all weights are 1.
    """
    if beta is None:
        return jnp.ones_like(probability)
    return jnp.power(probability / jnp.min(probability), -beta)
