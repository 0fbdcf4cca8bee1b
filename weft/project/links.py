"""Links: how a value gets from the replicas of one role to those of another.

The link is derived from the value's sharding on the sender (see `weft.sharding`) and is never declared: a sharded value
is gathered or scattered along its axis, a replicated one is broadcast, and the parts of a sum are added up.
"""

from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp

from weft.errors import WeftError
from weft.layout.layout import Role
from weft.sharding.sharding import Sharding


@dataclass(frozen=True)
class Link:
    """What happens to a value between two roles. Replicas are paired one to one, or one to `fan`."""

    kind: Literal["pair", "broadcast", "scatter", "gather", "first", "merge"]
    fan: int = 1
    """The number of replicas on the larger side for each replica on the smaller side."""
    axis: int | None = None
    """The axis along which the value is scattered or gathered."""
    runs: int = 1
    """The number of steps that are folded into this axis: every replica has rows of each."""
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


def link(name: str, source: Role, dest: Role, sharding: Sharding, merge: str = "") -> Link:
    """The link for a value with a sharding at the source.

    `merge` is the operation by which the destination merges values that the author declared each replica's own.
    """
    sent, received = source.batch_divisor, dest.batch_divisor
    if sharding.is_unknown:
        raise WeftError(
            f"{name} goes from {source.name} to {dest.name}, which divide the environments by {sent} and {received}, "
            f"but it {sharding.reason}"
        )
    if sent == received:
        return Link("pair")
    if max(sent, received) % min(sent, received):
        raise WeftError(
            f"{name} goes from {source.name}, which divides the batch by {sent}, to {dest.name}, which divides it by "
            f"{received}: choose their replicas so that one of the two numbers divides the other"
        )
    fan = max(sent, received) // min(sent, received)
    if sharding.kind == "sharded":
        return Link("scatter" if sent < received else "gather", fan, sharding.axis, max(1, sharding.folded))
    if sent < received:
        return Link("broadcast", fan)
    if sharding.kind == "partial":
        return Link("merge", fan, operation="mean" if sharding.power else "sum")
    return Link("merge", fan, operation=merge) if sharding.kind == "own" and merge else Link("first", fan)


def batch_axis(name: str, shapes: tuple[Any, Any], sizes: tuple[int, int]) -> int | None:
    """The axis in which the shapes of a value in two traces differ: it is divided like the environments."""
    if len(shapes[0]) != len(shapes[1]):
        raise WeftError(
            f"{name} has {len(shapes[0])} axes with {sizes[0]} environments and {len(shapes[1])} with {sizes[1]}, the "
            "share of one replica: give it the same number of axes for any number of environments"
        )
    differing = [axis for axis, pair in enumerate(zip(*shapes, strict=True)) if pair[0] != pair[1]]
    if not differing:
        return None
    if len(differing) > 1:
        raise WeftError(
            f"{name} has the shape {list(shapes[0])} with {sizes[0]} environments and {list(shapes[1])} with "
            f"{sizes[1]}, the share of one replica: keep one axis that grows with env.num_envs"
        )
    axis = differing[0]
    if shapes[0][axis] * sizes[1] != shapes[1][axis] * sizes[0]:
        raise WeftError(
            f"axis {axis} of {name} has {shapes[0][axis]} entries with {sizes[0]} environments and {shapes[1][axis]} "
            f"with {sizes[1]}, the share of one replica: make its size proportional to env.num_envs"
        )
    return axis


def is_key(aval: Any) -> bool:
    """Whether an array holds typed random keys."""
    return jnp.issubdtype(aval.dtype, jax.dtypes.prng_key)
