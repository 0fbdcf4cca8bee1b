"""What a merge must do so that R replicas compute what one replica computes.

On one replica a merge returns its operand. So on R replicas `all_mean` and `all_sum` must return the operand of the
whole, and the sharding of the operand says how: parts that add up are added, parts that are each R times too large are
averaged, and a value that is equal on all replicas stays. Only values that the author declared each replica's own are
combined as the merge's name says.
"""

from dataclasses import dataclass, field
from typing import Any

from weft.errors import WeftError
from weft.sharding.sharding import REPLICATED, SUM, Sharding, describe, unknown

Operations = tuple[str, ...]
"""How a merge combines the parts of each operand: `sum`, `mean`, `first` (the parts are equal) or `gather AXIS`."""

REFUSED = "refused"


@dataclass
class Merges:
    """What the merges of a role's program do, by the identity of their equations."""

    operations: dict[int, Operations] = field(default_factory=dict)
    terms: int = 1
    """The largest number of terms in a sum over rows that replicas compute in parts."""
    refusal: str = ""
    """Why a merge cannot be right. Loops are read repeatedly, and only what the last reading found counts."""

    def add(self, other: "Merges") -> None:
        self.refusal = self.refusal or other.refusal
        self.terms = max(self.terms, other.terms)
        for eqn, operations in other.operations.items():
            if self.operations.setdefault(eqn, operations) != operations:
                self.refusal = self.refusal or (
                    "one merge inside a function merges values of different kinds in different calls of that function "
                    f"({', '.join(operations)} and {', '.join(self.operations[eqn])}): write one merge for each call"
                )

    def raise_refusal(self) -> None:
        if self.refusal:
            raise WeftError(self.refusal)


def merge_one(merge: str, sharding: Sharding, *, has_rows: bool) -> tuple[str, Sharding]:
    """The operation of a merge over several replicas for one operand, and the sharding of the result.

    `has_rows` says whether the operand's shape depends on the number of environments.
    """
    if sharding.kind == "pending":
        return merge, sharding
    name = "all_" + merge.split()[0]
    if sharding.is_unknown:
        return REFUSED, sharding if sharding.reason.startswith("all_") else unknown(
            f"{name} merges a value that {sharding.reason}"
        )
    if merge.startswith("gather"):
        return _gather(merge, sharding, has_rows)
    if sharding.kind == "own":
        return merge, REPLICATED.depending_on(sharding.depends_on)
    if sharding.kind == "zero":
        return merge, sharding
    if sharding.kind == "replicated" and sharding.is_exact:
        return "first", sharding
    too_large = {"partial": sharding.power, "replicated": sharding.power + 1}.get(sharding.kind)
    if too_large in (0, 1):
        causes = sharding.depends_on | (SUM if sharding.kind == "partial" else frozenset())
        return ("mean" if too_large else "sum"), REPLICATED.depending_on(causes)
    return REFUSED, unknown(
        f"{name} merges a value that is {describe(sharding)}: reduce it over its rows first, as in all_sum(x.sum(0)), "
        "or collect the rows with all_gather"
    )


def _gather(merge: str, sharding: Sharding, has_rows: bool) -> tuple[str, Sharding]:
    axis: Any = int(merge.split()[1])
    rows = sharding.kind == "sharded" and (sharding.axis, sharding.folded, sharding.power) == (axis, 1, 0)
    if rows or sharding.kind == "own":
        return merge, REPLICATED.depending_on(sharding.depends_on)
    if sharding.kind == "zero" and has_rows:
        return merge, sharding
    return REFUSED, unknown(
        f"all_gather along axis {axis} collects a value that is {describe(sharding)}: give it a value with a row for "
        "every environment, and the axis of these rows"
    )
