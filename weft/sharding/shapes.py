"""The sharding of the results of operations that change shapes: reshapes, transposes, concatenations."""

import math
from collections.abc import Sequence

from weft.graph.rows import differing_axis
from weft.sharding.elementwise import general
from weft.sharding.pair import Pair, Result, Shape, along_rows, cannot
from weft.sharding.sharding import ANY_FOLD, ZERO, Sharding, join, repeated, unknown


def broadcast(pair: Pair) -> Result:
    sharding = pair.sharding(0)
    if sharding.kind == "sharded":
        axis = pair.params["broadcast_dimensions"][sharding.axis]
        fits = all(
            before[sharding.axis] == after[axis] for before, after in zip(pair.operand(0), pair.result(), strict=True)
        )
        return sharding.moved(axis) if fits else cannot(pair, sharding)
    return repeated(sharding, *pair.result())


def reshape(pair: Pair) -> Result:
    sharding = pair.sharding(0)
    if sharding.kind != "sharded":
        return sharding
    if pair.params.get("dimensions") is not None:
        return cannot(pair, sharding)
    return reshaped(sharding, *pair.operand(0), *pair.result()) or cannot(pair, sharding)


def reshaped(sharding: Sharding, whole: Shape, share: Shape, whole_after: Shape, share_after: Shape) -> Sharding | None:
    """The sharding after a reshape: the sharded rows must be one axis, or the inner part of one axis, of the result."""
    axis = differing_axis(whole_after, share_after)
    if axis is None:
        return None
    rows = share[sharding.axis], whole[sharding.axis]
    folds = [sharding.folded]
    if sharding.folded == ANY_FOLD:
        if share_after[axis] == rows[0] and math.prod(share_after[:axis]) == math.prod(share[: sharding.axis]):
            return sharding.moved(axis)
        folds = [steps for steps in range(1, rows[0] + 1) if rows[0] % steps == rows[1] % steps == 0]
    for folded in folds:
        # Before: `folded` steps of rows, after `before` entries; each row has `inner` entries. The same after.
        before, inner = math.prod(share[: sharding.axis]) * folded, math.prod(share[sharding.axis + 1 :])
        steps, remainder = divmod(before, math.prod(share_after[:axis]))
        if remainder or steps == 0 or share_after[axis] % steps or whole_after[axis] % steps:
            continue
        if share_after[axis] // steps * math.prod(share_after[axis + 1 :]) == rows[0] // folded * inner:
            return sharding.moved(axis, steps)
    return None


def transpose(pair: Pair) -> Result:
    sharding = pair.sharding(0)
    return sharding.moved(pair.params["permutation"].index(sharding.axis)) if sharding.kind == "sharded" else sharding


def squeeze(pair: Pair) -> Result:
    sharding = pair.sharding(0)
    if sharding.kind != "sharded":
        return sharding
    dropped = [axis % len(pair.operand(0)[0]) for axis in pair.params["dimensions"]]
    if sharding.axis in dropped:
        return cannot(pair, sharding)
    return sharding.moved(sharding.axis - sum(axis < sharding.axis for axis in dropped))


def reverse(pair: Pair) -> Result:
    sharding = pair.sharding(0)
    if sharding.kind == "sharded" and sharding.axis in pair.params["dimensions"]:
        return along_rows(pair, sharding)
    return sharding


def pad(pair: Pair) -> Result:
    value = pair.shardings[1]
    sharding = pair.sharding(0) if value.kind == "zero" else pair.nonzero(0)
    if sharding.kind == "sharded" and tuple(pair.params["padding_config"][sharding.axis]) != (0, 0, 0):
        return cannot(pair, sharding)
    return sharding if value.kind == "zero" else general(pair)


def concatenate(pair: Pair) -> Result:
    axis = pair.params["dimension"]
    shardings = pair.all_nonzero
    if all(sharding.kind == "zero" for sharding in pair.shardings):
        return ZERO
    if all(sharding.kind == "sharded" and sharding.axis == axis for sharding in shardings):
        return _joined_along(pair, shardings, axis)
    return _joined(pair.shardings)


def _joined_along(pair: Pair, shardings: Sequence[Sharding], axis: int) -> Sharding:
    """The sharding of arrays that are joined along their sharded axis: the steps of all of them are folded into it."""
    sizes = [pair.operand(index)[1][axis] for index in range(len(shardings))]
    rows = {size // sharding.folded for size, sharding in zip(sizes, shardings, strict=True) if sharding.folded}
    rows = rows or {min(sizes)}
    if len(rows) > 1 or len({sharding.power for sharding in shardings}) > 1:
        return cannot(pair, shardings[0])
    (each,) = rows
    return (
        cannot(pair, shardings[0])
        if any(size % each for size in sizes)
        else shardings[0].moved(axis, sum(sizes) // each)
    )


def stack(pair: Pair) -> Result:
    axis = pair.params["axis"]
    return _joined(
        [
            sharding.moved(sharding.axis + (sharding.axis >= axis)) if sharding.kind == "sharded" else sharding
            for sharding in pair.shardings
        ]
    )


def _joined(shardings: Sequence[Sharding]) -> Sharding:
    result = shardings[0]
    for sharding in shardings[1:]:
        result = join(result, sharding)
    return result


def unstack(pair: Pair) -> Result:
    sharding, axis = pair.sharding(0), pair.params["axis"]
    if sharding.kind == "sharded" and sharding.axis == axis:
        return unknown("is one row of the environments: use an operation over all rows")
    return sharding.moved(sharding.axis - (sharding.axis > axis)) if sharding.kind == "sharded" else sharding


def split(pair: Pair) -> Result:
    sharding, axis = pair.sharding(0), pair.params["axis"]
    if sharding.kind != "sharded" or sharding.axis != axis or sharding.folded == ANY_FOLD:
        return sharding
    parts = len(pair.share.outvars)
    even = len(set(pair.params["sizes"])) == 1 and sharding.folded % parts == 0
    return sharding.moved(axis, sharding.folded // parts) if even else cannot(pair, sharding)


def tile(pair: Pair) -> Result:
    sharding, reps = pair.sharding(0), pair.params["reps"]
    if sharding.kind != "sharded":
        return sharding
    axis = sharding.axis + max(len(reps) - len(pair.operand(0)[0]), 0)
    return sharding.moved(axis, sharding.folded * reps[axis])
