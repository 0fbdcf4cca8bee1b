"""Sharding: how the values that the replicas of a role hold make up the value of the whole loop.

A synchronous layout must compute the same for any number of replicas. Let `whole` be a value of the loop with all
environments, and `part` the same value in the program of one of R replicas. Its sharding is one of these:

- `replicated`: each part equals the whole;
- `sharded`: each part is a block of rows of the whole, along one axis. If the axis is T steps of B rows folded into one
  (`folded` = T), each part has its own rows of every step;
- `partial`: the parts add up to the whole;
- `zero`: every entry of the whole and of the parts is 0. So the value is replicated, sharded and partial at once;
- `own`: the author declares that each replica has its own value (`per_replica`, `replica()`);
- `unknown`: none of these can be shown. The sharding holds the reason. It is an error only if the value is needed;
- `pending`: not found yet. The shardings of all roles and loops are found by repetition, from `pending` upwards.

A part may be too large by a power of R: the mean over a replica's own rows is R times its contribution to the mean of
all rows. `power` is the exponent: the parts divided by R ** power make up the whole.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from weft.graph.rows import differing_axis

Kind = Literal["replicated", "sharded", "partial", "zero", "own", "unknown", "pending"]

SUM = frozenset({"sum"})
OWN = frozenset({"own"})
LANE = frozenset({"lane"})
CONSTANT = frozenset({"constant"})
ANY_FOLD = 0
"""The `folded` of an array whose entries do not change along the sharded axis, so that any number of steps fits."""


@dataclass(frozen=True)
class Sharding:
    """The sharding of one value on the replicas of one role."""

    kind: Kind
    axis: int = 0
    """The sharded axis."""
    folded: int = 1
    """The number of steps that are folded into the sharded axis."""
    power: int = 0
    depends_on: frozenset[str] = frozenset()
    """Why the value cannot equal that of one replica bit for bit: it depends on a sum over replicas (`sum`), which adds
    its terms in another order, on values that the author declared each replica's own (`own`), or on a merge in a lane
    that does not wait for other lanes (`lane`). Of an unknown number of the program: `constant`."""
    reason: str = ""
    """Of an unknown sharding: why it is unknown, as the end of a sentence that starts with the value."""

    @property
    def is_unknown(self) -> bool:
        return self.kind == "unknown"

    @property
    def is_exact(self) -> bool:
        """Whether the parts make up the whole without a factor."""
        return self.power == 0

    def depending_on(self, causes: frozenset[str]) -> "Sharding":
        """The same sharding of a value that also depends on `causes`."""
        return self if causes <= self.depends_on else replace(self, depends_on=self.depends_on | causes)

    def moved(self, axis: int, folded: int | None = None) -> "Sharding":
        """The sharding after its axis has moved."""
        return replace(self, axis=axis, folded=self.folded if folded is None else folded)

    def common(self, other: "Sharding") -> "Sharding | None":
        """The sharding that both have, if they differ in nothing but what they depend on."""
        causes = self.depends_on | other.depends_on
        if (self.kind, self.power) != (other.kind, other.power):
            return None
        if self.kind != "sharded":
            return self.depending_on(causes)
        folded = common_fold(self.folded, other.folded)
        if self.axis != other.axis or folded is None:
            return None
        return self.moved(self.axis, folded).depending_on(causes)


REPLICATED = Sharding("replicated")
ZERO = Sharding("zero")
PENDING = Sharding("pending")


def sharded(axis: int, folded: int = 1) -> Sharding:
    return Sharding("sharded", axis, folded)


def unknown(reason: str) -> Sharding:
    return Sharding("unknown", reason=reason)


def common_fold(one: int, other: int) -> int | None:
    """The number of folded steps that fits two arrays; None if they have different numbers."""
    if one == other or other == ANY_FOLD:
        return one
    return other if one == ANY_FOLD else None


def all_causes(shardings: Iterable[Sharding]) -> frozenset[str]:
    """The union of what values depend on."""
    return frozenset().union(*(sharding.depends_on for sharding in shardings))


def join(one: Sharding, other: Sharding) -> Sharding:
    """The sharding of a value that has one of two shardings, such as the result of a branch or the carry of a loop."""
    causes = one.depends_on | other.depends_on
    for sharding, rest in ((one, other), (other, one)):
        if sharding.kind == "pending":
            return rest
        if sharding.is_unknown:
            return sharding
        if sharding.kind == "zero":
            return rest.depending_on(causes)
    if "own" in (one.kind, other.kind):
        return Sharding("own", depends_on=causes | OWN)
    return one.common(other) or unknown(f"may be {describe(one)} or {describe(other)}")


def repeated(sharding: Sharding, whole: Sequence[int], part: Sequence[int]) -> Sharding:
    """The sharding of a replicated value after it was repeated along new axes, to the shapes of whole and part."""
    if sharding.kind != "replicated" or tuple(whole) == tuple(part):
        return sharding
    axis = differing_axis(whole, part)
    if axis is None:
        return unknown(f"has the shape {list(whole)} with all environments and {list(part)} on a replica")
    return replace(sharding, kind="sharded", axis=axis, folded=ANY_FOLD)


def describe(sharding: Sharding) -> str:
    """A sharding in words."""
    words = {
        "replicated": "equal on all replicas",
        "sharded": f"divided among the replicas along axis {sharding.axis}"
        + (f", with {sharding.folded} steps folded into it" * (sharding.folded > 1)),
        "partial": "a sum over the rows of one replica",
        "zero": "zero",
        "own": "each replica's own value",
        "unknown": sharding.reason,
        "pending": "not known",
    }[sharding.kind]
    return words if sharding.is_exact else f"{words}, scaled by the number of replicas"
