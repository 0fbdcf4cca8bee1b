"""From trajectories to minibatches, and the shapes and weights of batches from a replay table."""

import math
from typing import TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from weft.errors import WeftError

T = TypeVar("T")


def swap_time(tree: T) -> T:
    """Leaves [T, B, ...] as one row per environment, [B, T, ...]."""
    return jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), tree)


def shuffled(
    key: jax.Array, shape: tuple[int, ...], *, epochs: int, minibatches: int
) -> Int[Array, "updates groups size"]:
    """The items of every minibatch of every epoch, for items [T, B, ...] of T steps and B environments.

    The environments are divided into the smallest groups whose items divide evenly into the minibatches: often a group
    is one environment. Each epoch is a permutation of the items of every group, so every minibatch has the same number
    of items of each group. Replicas with whole groups therefore have equal parts of the same minibatches.
    """
    steps, rows, *_ = shape
    group = minibatches // math.gcd(steps, minibatches)
    if rows % group:
        raise WeftError(
            f"the {rows} environments of a replica, with {steps} items each, cannot be divided into {minibatches} "
            f"equal minibatches: change minibatches, horizon or num_envs so that each replica has a multiple of "
            f"{group} environments"
        )
    groups, items = rows // group, group * steps
    orders = jnp.argsort(jax.random.bits(key, (epochs, groups, items)), axis=-1)
    orders = orders.reshape(epochs, groups, minibatches, items // minibatches)
    return jnp.swapaxes(orders, 1, 2).reshape(epochs * minibatches, groups, items // minibatches)


def in_groups(tree: T, groups: int) -> T:
    """Leaves [T, B, ...] as the items of each group of environments, [groups, items, ...]."""

    def divide(x: jax.Array) -> jax.Array:
        by_group = jnp.swapaxes(x.reshape(x.shape[0], groups, -1, *x.shape[2:]), 0, 1)
        return by_group.reshape(groups, -1, *x.shape[2:])

    return jax.tree.map(divide, tree)


def take_items(tree: T, order: Int[Array, "groups size"]) -> T:
    """The given items of each group, of leaves [groups, items, ...], as rows [groups * size, ...]."""
    return jax.tree.map(lambda x: jax.vmap(lambda x, i: x[i])(x, order).reshape(-1, *x.shape[2:]), tree)


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
