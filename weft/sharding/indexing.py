"""The sharding of the results of slices, gathers and scatters."""

from weft.sharding.pair import Pair, Result, combined, scaled
from weft.sharding.sharding import ANY_FOLD, ZERO, Sharding, common_fold, describe, unknown


def static_slice(pair: Pair) -> Result:
    """A slice at fixed positions. Along the sharded axis it takes all rows, or those of some steps folded into it."""
    sharding, axis = pair.sharding(0), pair.sharding(0).axis
    bounds = [_bounds(eqn) for eqn in (pair.whole, pair.share)]
    if sharding.kind != "sharded":
        return sharding if bounds[0] == bounds[1] or sharding.kind == "zero" else _other_positions(pair)
    if any(a != b for index, (a, b) in enumerate(zip(*bounds, strict=True)) if index != axis):
        return _other_positions(pair)
    if sharding.folded == ANY_FOLD:
        same = pair.result()[0][axis] == pair.result()[1][axis]
        return Sharding("replicated", power=sharding.power) if same else sharding
    steps = [
        _steps(bound[axis], shape[axis] // sharding.folded)
        for bound, shape in zip(bounds, pair.operand(0), strict=True)
    ]
    return (
        sharding.moved(axis, steps[0][1] - steps[0][0])
        if steps[0] == steps[1] and steps[0]
        else _some_rows(pair, sharding)
    )


def _bounds(eqn: object) -> list[tuple[int, int, int]]:
    """The start, the end and the stride of a slice, for each axis."""
    params = eqn.params  # pyright: ignore[reportAttributeAccessIssue]
    strides = params["strides"] or (1,) * len(params["start_indices"])
    return list(zip(params["start_indices"], params["limit_indices"], strides, strict=True))


def _steps(bound: tuple[int, int, int], rows: int) -> tuple[int, int] | None:
    """The first step and the last, exclusive, of a slice of whole steps; None if it takes some rows of a step."""
    start, end, stride = bound
    return (start // rows, end // rows) if stride == 1 and start % rows == end % rows == 0 else None


def dynamic_slice(pair: Pair) -> Result:
    sharding, starts = pair.sharding(0), [pair.nonzero(index) for index in range(1, len(pair.shardings))]
    if wrong := _wrong_positions(pair, starts):
        return wrong
    if sharding.kind != "sharded" or pair.operand(0)[1][sharding.axis] == pair.result()[1][sharding.axis]:
        return sharding
    return _some_rows(pair, sharding)


def dynamic_update_slice(pair: Pair) -> Result:
    sharding, update = pair.sharding(0), pair.sharding(1)
    if wrong := _wrong_positions(pair, [pair.nonzero(index) for index in range(2, len(pair.shardings))]):
        return wrong
    kept = _written(sharding, update)
    if kept.kind == "sharded" and pair.operand(0)[1][kept.axis] != pair.operand(1)[1][kept.axis]:
        return _some_rows(pair, kept)
    return kept


def _written(sharding: Sharding, update: Sharding) -> Sharding:
    """The sharding of an array after some of its entries were replaced."""
    if sharding.kind == "zero":
        return update
    if update.kind == "zero":
        return sharding
    return sharding.common(update) or unknown(
        f"is {describe(sharding)}, and a value that is {describe(update)} is written into it"
    )


def _some_rows(pair: Pair, sharding: Sharding) -> Sharding:
    return unknown(
        f"comes from `{pair.name}` of some rows of a value that is {describe(sharding)}: which replica holds them "
        "depends on the number of replicas; collect all rows with all_gather first, or use a mask over all rows"
    )


def _other_positions(pair: Pair) -> Sharding:
    return unknown(
        f"comes from `{pair.name}` at positions that depend on env.num_envs: take the same positions for any number of "
        "environments, or use a mask"
    )


def _wrong_positions(pair: Pair, starts: list[Sharding]) -> Sharding | None:
    """The sharding of what is read or written at positions that are not equal on all replicas."""
    wrong = [start for start in starts if start.kind != "replicated" or not start.is_exact]
    if not wrong:
        return None
    return (
        scaled(wrong)
        if not wrong[0].is_exact
        else unknown(f"comes from `{pair.name}` at a position {describe(wrong[0])}")
    )


def gather(pair: Pair) -> Result:
    numbers, sharding, indices = pair.params["dimension_numbers"], pair.sharding(0), pair.nonzero(1)
    if sharding.kind == "zero":
        return ZERO
    if not indices.is_exact or indices.kind == "partial":
        return scaled([indices])
    batch = [axis for axis in range(len(pair.result()[0])) if axis not in numbers.offset_dims]
    if indices.kind == "sharded" and indices.axis >= len(batch):
        return _some_rows(pair, indices)
    if sharding.kind != "sharded":
        if indices.kind == "replicated":
            return sharding
        if sharding.kind == "replicated":
            return Sharding("sharded", batch[indices.axis], indices.folded, sharding.power)
        return unknown("takes rows of a value that is a sum over the rows of one replica: merge it with all_sum first")
    batching = dict(zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True))
    if folded := _row_by_row(pair, sharding, indices, batching, numbers.start_index_map):
        return Sharding("sharded", batch[indices.axis], folded[0], sharding.power)
    windows = [
        axis for axis in range(len(pair.operand(0)[0])) if axis not in (*numbers.collapsed_slice_dims, *batching)
    ]
    full = pair.params["slice_sizes"][sharding.axis] == pair.operand(0)[1][sharding.axis]
    if indices.kind == "replicated" and sharding.axis in windows and full:
        return sharding.moved(numbers.offset_dims[windows.index(sharding.axis)])
    return _some_rows(pair, sharding)


def _row_by_row(
    pair: Pair, sharding: Sharding, indices: Sharding, batching: dict[int, int], indexed: tuple[int, ...]
) -> tuple[int] | None:
    """The number of folded steps if each row of the indices selects entries of the same row of the operand."""
    own = {indexed[column] for column in pair.own_columns}
    folded = common_fold(sharding.folded, indices.folded)
    if indices.kind != "sharded" or folded is None:
        return None
    paired = batching.get(sharding.axis, -1) == indices.axis or sharding.axis in own and folded <= 1
    return (folded,) if paired else None


def scatter(pair: Pair) -> Result:
    """Entries replaced at the positions in the indices, or combined with updates."""
    numbers, adds = pair.params["dimension_numbers"], pair.name in ("scatter_add", "scatter-add")
    sharding, indices, updates = pair.sharding(0), pair.nonzero(1), pair.sharding(2)
    if not indices.is_exact or indices.kind == "partial":
        return scaled([indices])
    if not adds and pair.name != "scatter" and not (sharding.is_exact and updates.is_exact):
        return scaled([sharding, updates])
    if not adds and pair.name != "scatter" and "partial" in (sharding.kind, updates.kind):
        return combined([sharding, updates])
    if sharding.kind == updates.kind == "zero":
        return ZERO
    rows = [axis for axis in range(len(pair.operand(2)[0])) if axis not in numbers.update_window_dims]
    if indices.kind == "sharded" and indices.axis >= len(rows):
        return _some_rows(pair, indices)
    batching = dict(zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True))
    operand = pair.nonzero(0)
    if operand.kind == "sharded":
        if sharding.kind == "zero":
            operand = Sharding("sharded", operand.axis, operand.folded, updates.power)
        if folded := _row_by_row(pair, operand, indices, batching, numbers.scatter_dims_to_operand_dims):
            return _written_rows(operand.moved(operand.axis, folded[0]), updates, rows[indices.axis])
        axis = _window_of_updates(pair, operand, indices, batching)
        return _some_rows(pair, operand) if axis is None else _written_rows(operand, updates, axis)
    if indices.kind == "replicated":
        return _written(sharding, updates)
    own_updates = updates.kind == "zero" or updates.kind == "sharded" and updates.axis == rows[indices.axis]
    if adds and sharding.kind in ("zero", "partial") and own_updates:
        # Each replica adds its rows to entries that any replica may add to, as in the gradient of an embedding.
        added = Sharding("partial", power=updates.power) if updates.kind == "sharded" else ZERO
        return _written(sharding, added)
    return unknown(
        "has the rows of each replica written into it, but it is equal on all replicas: collect the rows with "
        "all_gather first, or give it a row for every environment"
    )


def _window_of_updates(pair: Pair, sharding: Sharding, indices: Sharding, batching: dict[int, int]) -> int | None:
    """The axis of the updates that goes to all rows of the operand; None if there is none."""
    numbers = pair.params["dimension_numbers"]
    windows = [
        axis for axis in range(len(pair.operand(0)[0])) if axis not in (*numbers.inserted_window_dims, *batching)
    ]
    if indices.kind != "replicated" or sharding.axis not in windows:
        return None
    window = numbers.update_window_dims[windows.index(sharding.axis)]
    return window if pair.operand(2)[1][window] == pair.operand(0)[1][sharding.axis] else None


def _written_rows(sharding: Sharding, updates: Sharding, axis: int) -> Sharding:
    """The sharding of sharded rows after each replica wrote into its own."""
    if updates.kind == "zero":
        return sharding
    same_rows = updates.kind == "sharded" and updates.axis == axis
    kept = sharding.common(updates.moved(sharding.axis)) if same_rows else None
    return kept or unknown(f"is {describe(sharding)}, and a value that is {describe(updates)} is written into it")
