"""How a value goes from the replicas of one role to those of another: derived from its two shapes, never declared.

Each role's loop is traced at that role's share of the environments. A crossing value has a shape in the sender's trace
and one in the receiver's; the axis in which they differ is its batch axis, along which shares are joined or split.
"""

from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp

from weft.errors import WeftError
from weft.layout.layout import Role


@dataclass(frozen=True)
class Link:
    """What happens to a value on its way, and how many replicas of the larger side there are to one of the smaller."""

    how: Literal["pair", "broadcast", "scatter", "gather", "first", "merge"]
    fan: int = 1
    axis: int | None = None
    operation: str = ""
    """Of a merge: what becomes of the parts."""


@dataclass(frozen=True, eq=False)
class Edge:
    """One value that crosses between two roles."""

    source: str
    dest: str
    name: str
    times: int
    """How often in one iteration."""
    bytes: int
    """Of one crossing, over all replicas of the receiver's side."""
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

    `batch` is the number of environments in all; `varying` says whether the source's replicas may hold different
    values; `merge` is the operation by which the destination merges them, if it does.
    """
    if source.shares == dest.shares:
        return Link("pair")
    if max(source.shares, dest.shares) % min(source.shares, dest.shares):
        raise WeftError(
            f"{name} goes from {source.shares} replicas of {source.name} to {dest.shares} of {dest.name}: "
            "one of the two counts must divide the other"
        )
    fan = max(source.shares, dest.shares) // min(source.shares, dest.shares)
    axis = batch_axis(name, avals, (batch // source.shares, batch // dest.shares))
    if source.shares < dest.shares:
        return Link("broadcast" if axis is None else "scatter", fan, axis)
    if axis is None and merge:
        return Link("merge", fan, operation=merge)
    if axis is None and varying:
        raise WeftError(
            f"{name} comes from {source.shares} replicas of {source.name} that may each have another value, it has no "
            f"batch axis to join them along, and {dest.name} needs one: use all_mean or all_sum where it is made"
        )
    return Link("first" if axis is None else "gather", fan, axis)


def batch_axis(name: str, avals: tuple[Any, Any], sizes: tuple[int, int]) -> int | None:
    """The axis in which two traces of a value differ; it must be the number of environments in each."""
    shapes = avals[0].shape, avals[1].shape
    if len(shapes[0]) != len(shapes[1]):
        raise WeftError(
            f"{name} has {len(shapes[0])} axes with {sizes[0]} environments and {len(shapes[1])} with {sizes[1]}"
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
            "into it, so shares cannot be joined in order; fold it in the fragment that uses the value"
        )
    return axis


def is_key(aval: Any) -> bool:
    """Whether an array holds typed random keys."""
    return jnp.issubdtype(aval.dtype, jax.dtypes.prng_key)
