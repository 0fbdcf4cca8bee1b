"""A pair of equations: one in the trace of the whole, and the same one in the trace of a share.

The rules in `elementwise`, `shapes`, `reductions` and `indexing` get such a pair, with the shardings of the operands,
and return the shardings of the results.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from weft.sharding.sharding import REPLICATED, Sharding, common_fold, describe, repeated, unknown

Result = Sharding | list[Sharding]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Pair:
    """One equation in the traces of the whole and of a share."""

    name: str
    whole: Any
    share: Any
    shardings: Sequence[Sharding]
    own_columns: tuple[int, ...] = ()
    """Of a gather or scatter: the columns of the indices that hold the numbers of the replica's own rows."""

    @property
    def params(self) -> dict[str, Any]:
        return self.share.params

    def operand(self, index: int) -> tuple[Shape, Shape]:
        """The shapes of an operand, in the whole and in the share."""
        return self.whole.invars[index].aval.shape, self.share.invars[index].aval.shape

    def result(self, index: int = 0) -> tuple[Shape, Shape]:
        return self.whole.outvars[index].aval.shape, self.share.outvars[index].aval.shape

    def sharding(self, index: int) -> Sharding:
        return self.shardings[index]

    def nonzero(self, index: int) -> Sharding:
        """As `sharding`, for rules that do not distinguish zero from other numbers."""
        sharding = self.shardings[index]
        return repeated(REPLICATED, *self.operand(index)) if sharding.kind == "zero" else sharding

    @property
    def all_nonzero(self) -> list[Sharding]:
        return [self.nonzero(index) for index in range(len(self.shardings))]

    @property
    def terms(self) -> int:
        """The number of terms of each entry of the result, if the operation adds entries of its operands up."""
        sizes = [math.prod(self.operand(index)[0]) for index in range(len(self.shardings))]
        return max(sizes) // max(1, math.prod(self.result()[0]))

    @property
    def unchanged(self) -> bool:
        """Whether all operands are equal on all replicas and the equations are the same."""
        shapes = [self.operand(index) for index in range(len(self.shardings))]
        shapes += [self.result(index) for index in range(len(self.share.outvars))]
        equal = all(sharding.kind in ("replicated", "zero") and sharding.is_exact for sharding in self.shardings)
        return equal and all(whole == part for whole, part in shapes) and not self._differing_params

    @property
    def same_params(self) -> bool:
        """Whether the equations have the same parameters, except those that are sizes."""
        return self._differing_params <= SIZES.get(self.name, set())

    @property
    def _differing_params(self) -> set[str]:
        whole, share = self.whole.params, self.share.params
        return {name for name in whole.keys() | share.keys() if not _same(whole.get(name), share.get(name))}


SIZES: dict[str, set[str]] = {
    "broadcast_in_dim": {"shape"},
    "reshape": {"new_sizes"},
    "slice": {"start_indices", "limit_indices"},
    "dynamic_slice": {"slice_sizes"},
    "gather": {"slice_sizes"},
    "split": {"sizes"},
    "iota": {"shape"},
}
"""The parameters of each operation that may differ with the number of environments. Its rule compares them, or the
shapes of the results do."""


def kinds_of(shardings: Sequence[Sharding]) -> set[str]:
    return {sharding.kind for sharding in shardings}


def combined(shardings: Sequence[Sharding]) -> Sharding:
    """The sharding of entries that are computed from entries of these shardings: sharded if any of them is."""
    rows = [sharding for sharding in shardings if sharding.kind == "sharded"]
    folded = rows[0].folded if rows else 1
    for sharding in rows:
        fits = common_fold(folded, sharding.folded) if sharding.axis == rows[0].axis else None
        if fits is None:
            return unknown(f"combines a value that is {describe(rows[0])} with one that is {describe(sharding)}")
        folded = fits
    if "partial" in kinds_of(shardings):
        sums = next(sharding for sharding in shardings if sharding.kind == "partial")
        return unknown(f"is not linear in a value that is {describe(sums)}: merge that with all_sum or all_mean first")
    return Sharding("sharded", rows[0].axis, folded) if rows else REPLICATED


def scaled(shardings: Sequence[Sharding]) -> Sharding:
    scaled = next((sharding for sharding in shardings if not sharding.is_exact), shardings[0])
    return unknown(f"is computed from a value that is {describe(scaled)}: merge that with all_sum or all_mean first")


def cannot(pair: Pair, sharding: Sharding) -> Sharding:
    return unknown(f"comes from `{pair.name}` of a value that is {describe(sharding)}")


def along_rows(pair: Pair, sharding: Sharding) -> Sharding:
    return unknown(
        f"comes from `{pair.name}` along axis {sharding.axis}, of which each replica holds only its own rows: collect "
        "all rows with all_gather, or declare the value a replica's own with per_replica"
    )


def _same(one: Any, other: Any) -> bool:
    if type(one) is type(other) and isinstance(one, tuple | int | str):
        return one == other
    return one is other or callable(one) and callable(other) or repr(one) == repr(other)
