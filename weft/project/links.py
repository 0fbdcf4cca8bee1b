"""Links: how a value gets from the replicas of one role to those of another.

The link is derived from the value's shapes and is never declared. The loop is traced for each role at that role's share
of the batch, so a value that crosses has one shape in the sender's trace and one in the receiver's. The axis in which
the two shapes differ is the value's batch axis, along which the value is gathered or scattered.
"""

from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp

from weft.errors import WeftError
from weft.layout.layout import Role


@dataclass(frozen=True)
class Link:
    """What happens to a value between two roles. Replicas are paired one to one, or one to `fan`."""

    kind: Literal["pair", "broadcast", "scatter", "gather", "first", "merge"]
    fan: int = 1
    """The number of replicas on the larger side for each replica on the smaller side."""
    axis: int | None = None
    """The batch axis along which the value is scattered or gathered."""
    operation: str = ""
    """For a merge: `mean` or `sum`."""


@dataclass(frozen=True, eq=False)
class Edge:
    """One value that crosses between two roles."""

    source: str
    dest: str
    name: str
    times: int
    """The number of crossings in one iteration."""
    bytes: int
    """The size of one crossing, over all replicas of the receiver."""
    link: Link
    kind: Literal["stream", "register"] = "stream"


def link(
    name: str,
    source: Role,
    dest: Role,
    avals: tuple[Any, Any],
    *,
    batch: int,
    varying: bool,
    merge: str = "",
) -> Link:
    """The link for a value that has the shapes `avals` at the source and at the destination.

    `batch` is the total number of environments. `varying` tells whether the source's replicas may hold different
    values. `merge` is the operation by which the destination merges these values, if it does.
    """
    sent, received = source.batch_divisor, dest.batch_divisor
    if sent == received:
        return Link("pair")
    if max(sent, received) % min(sent, received):
        raise WeftError(
            f"{name} goes from {source.name}, which divides the batch by {sent}, to {dest.name}, which divides it by "
            f"{received}: choose their replicas so that one of the two numbers divides the other"
        )
    fan = max(sent, received) // min(sent, received)
    axis = batch_axis(name, avals, (batch // sent, batch // received))
    if sent < received:
        return Link("broadcast" if axis is None else "scatter", fan, axis)
    if axis is None and merge:
        return Link("merge", fan, operation=merge)
    if axis is None and varying:
        raise WeftError(
            f"{name} may have a different value on each of the {sent} replicas of {source.name}, {dest.name} needs a "
            "single one, and it has no batch axis to gather along: merge it with all_mean or all_sum where it is made"
        )
    return Link("first" if axis is None else "gather", fan, axis)


def batch_axis(name: str, avals: tuple[Any, Any], sizes: tuple[int, int]) -> int | None:
    """The axis in which the shapes of a value in two traces differ. Its size must be the number of environments."""
    shapes = avals[0].shape, avals[1].shape
    if len(shapes[0]) != len(shapes[1]):
        raise WeftError(
            f"{name} has {len(shapes[0])} axes with {sizes[0]} environments and {len(shapes[1])} with {sizes[1]}: "
            "give it the same number of axes for any number of environments"
        )
    differing = [axis for axis, pair in enumerate(zip(*shapes, strict=True)) if pair[0] != pair[1]]
    if not differing:
        return None
    if len(differing) > 1:
        raise WeftError(
            f"{name} changes in several axes with the number of environments ({shapes[0]}, {shapes[1]}): "
            "keep one batch axis"
        )
    axis = differing[0]
    if (shapes[0][axis], shapes[1][axis]) != sizes:
        raise WeftError(
            f"axis {axis} of {name} has {shapes[0][axis]} entries for {sizes[0]} environments: another axis is folded "
            "into it, so the shares cannot be gathered in order; fold it in the fragment that uses the value"
        )
    return axis


def is_key(aval: Any) -> bool:
    """Whether an array holds typed random keys."""
    return jnp.issubdtype(aval.dtype, jax.dtypes.prng_key)
