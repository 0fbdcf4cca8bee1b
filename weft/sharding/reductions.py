"""The sharding of the results of reductions, products and operations along an axis."""

from collections.abc import Callable

from weft.sharding.elementwise import general
from weft.sharding.pair import Pair, Result, along_rows, cannot, combined, kinds_of, scaled
from weft.sharding.sharding import ANY_FOLD, ZERO, Sharding, common_fold, unknown


def along(names: str) -> Callable[[Pair], Result]:
    """A function along some axes, named by a parameter, that must not be the sharded one."""

    def rule(pair: Pair) -> Result:
        axes = pair.params[names]
        axes = axes if isinstance(axes, tuple | list) else (axes,)
        crossed = [each for each in pair.all_nonzero if each.kind == "sharded" and each.axis in axes]
        return along_rows(pair, crossed[0]) if crossed else general(pair)

    return rule


def cumsum(pair: Pair) -> Result:
    sharding = pair.sharding(0)
    crossed = sharding.kind == "sharded" and sharding.axis == pair.params["axis"]
    return along_rows(pair, sharding) if crossed else sharding


def reduce_sum(pair: Pair) -> Result:
    sharding, axes = pair.sharding(0), pair.params["axes"]
    if sharding.kind != "sharded":
        return sharding
    return Sharding("partial", power=sharding.power) if sharding.axis in axes else _without(axes, sharding)


def _without(axes: tuple[int, ...], sharding: Sharding) -> Sharding:
    return sharding.moved(sharding.axis - sum(axis < sharding.axis for axis in axes))


UNCHANGED_BY_COPIES = ("reduce_max", "reduce_min", "reduce_and", "reduce_or")


def reduction(pair: Pair) -> Result:
    """The largest, the smallest, all, any, a product: not a sum over replicas."""
    axes, sharding = pair.params["axes"], pair.nonzero(0)
    if sharding.kind == "partial":
        return combined([sharding])
    if not sharding.is_exact and pair.name not in ("reduce_max", "reduce_min"):
        return scaled([sharding])
    if sharding.kind != "sharded":
        return sharding
    if sharding.axis not in axes:
        return _without(axes, sharding)
    if sharding.folded == ANY_FOLD and pair.name in UNCHANGED_BY_COPIES:
        return Sharding("replicated", power=sharding.power)
    return along_rows(pair, sharding)


def dot_general(pair: Pair) -> Result:
    contract, batch = pair.params["dimension_numbers"]
    if "zero" in kinds_of(pair.shardings):
        return ZERO
    one, other = pair.shardings
    power, kinds = one.power + other.power, kinds_of(pair.shardings)
    if kinds == {"partial", "replicated"}:
        return Sharding("partial", power=power)
    if kinds == {"replicated"}:
        return Sharding("replicated", power=power)
    if "partial" in kinds:
        return combined([one, other])
    if kinds == {"sharded"}:
        folded = common_fold(one.folded, other.folded)
        if folded is None:
            return unknown("is a product of rows of which one value holds several steps folded into one axis")
        if (one.axis, other.axis) in zip(*contract, strict=True):
            return Sharding("partial", power=power)
        if (one.axis, other.axis) in zip(*batch, strict=True):
            return Sharding("sharded", list(batch[0]).index(one.axis), folded, power)
        return unknown("is a product of every row of one value with every row of another: collect one with all_gather")
    side = 0 if one.kind == "sharded" else 1
    sharding = (one, other)[side]
    if sharding.axis in contract[side] or sharding.axis in batch[side]:
        return unknown("is a product along the rows of the environments, of which each replica holds only its own")
    rank = len(pair.operand(side)[0])
    free = [axis for axis in range(rank) if axis not in contract[side] and axis not in batch[side]]
    before = len(batch[0])
    if side:
        before += len(pair.operand(0)[0]) - len(contract[0]) - len(batch[0])
    return Sharding("sharded", before + free.index(sharding.axis), sharding.folded, power)


def convolution(pair: Pair) -> Result:
    numbers = pair.params["dimension_numbers"]
    if "zero" in kinds_of(pair.shardings):
        return ZERO
    one, other = pair.shardings
    power, kinds = one.power + other.power, kinds_of(pair.shardings)
    if kinds in ({"partial", "replicated"}, {"replicated"}):
        return Sharding("partial" if "partial" in kinds else "replicated", power=power)
    plain = pair.params["feature_group_count"] == pair.params["batch_group_count"] == 1
    if one.kind == "sharded" and other.kind == "replicated" and one.axis == numbers.lhs_spec[0] and plain:
        return Sharding("sharded", numbers.out_spec[0], one.folded, power)
    features = numbers.lhs_spec[1], numbers.rhs_spec[1]
    # In the gradient of the weights, the rows of the batch are features to add up.
    if kinds == {"sharded"} and (one.axis, other.axis) == features and plain:
        folded = common_fold(one.folded, other.folded)
        return cannot(pair, one) if folded is None else Sharding("partial", power=power)
    return cannot(pair, one if one.kind == "sharded" else other)


def window(pair: Pair) -> Result:
    """Windows that slide over axes other than the sharded one."""
    sharding = pair.nonzero(0)
    if sharding.kind == "sharded" and not _one_row(pair, sharding.axis):
        return cannot(pair, sharding)
    return pair.sharding(0) if pair.name == "reduce_window_sum" else general(pair)


def window_scatter(pair: Pair) -> Result:
    """The gradient of a maximum over windows: the windows of the first operand's rows are those of the second's."""
    source, operand = pair.sharding(0), pair.nonzero(1)
    if source.kind == "zero":
        return ZERO
    if kinds_of([source, operand]) == {"sharded"} and source.axis == operand.axis and operand.is_exact:
        folded = common_fold(source.folded, operand.folded)
        fits = _one_row(pair, source.axis) and folded is not None
        return source.moved(source.axis, folded) if fits else cannot(pair, source)
    return general(pair)


def _one_row(pair: Pair, axis: int) -> bool:
    """Whether every window spans one row of an axis, and there is one for each row."""
    sizes = ("window_dimensions", "window_strides", "base_dilation", "window_dilation")
    padding = pair.params.get("padding", ((0, 0),) * (axis + 1))[axis]
    return all(pair.params[name][axis] == 1 for name in sizes if name in pair.params) and tuple(padding) == (0, 0)


def batched(cores: int) -> Callable[[Pair], Result]:
    """Functions of matrices or vectors in the last `cores` axes, row by row."""

    def rule(pair: Pair) -> Result:
        for index, sharding in enumerate(pair.all_nonzero):
            if sharding.kind == "sharded" and sharding.axis >= len(pair.operand(index)[0]) - cores:
                return cannot(pair, sharding)
        return general(pair)

    return rule


def top_k(pair: Pair) -> Result:
    sharding = pair.nonzero(0)
    axis = pair.params.get("axis", pair.params.get("reduction_dimension", -1)) % len(pair.operand(0)[0])
    if sharding.kind == "sharded" and sharding.axis == axis:
        return along_rows(pair, sharding)
    return general(pair)
