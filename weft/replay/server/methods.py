"""The methods that a client can call on a table.

Each method is a function of a table and a request. Methods never wait: one that the table's limiter does not allow yet
raises `LimiterTimeout`, and the request handler tries again (see `request_handler`).
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from weft.errors import WeftError
from weft.replay.items import Items
from weft.replay.patterns import Pattern, Whole
from weft.replay.pipeline import Pipeline
from weft.replay.server.arena import Arena
from weft.replay.server.protocol import (
    COLUMN_PREFIX,
    Arrays,
    Reply,
    Request,
    column_arrays,
    limiter_args,
    read_limiter,
    split_columns,
)
from weft.replay.store import Store
from weft.replay.table import Table

NO_WAIT = 0.0
"""The timeout of every call of a table."""
NO_KEYS = np.empty(0, np.uint64)


class Method(NamedTuple):
    """A method, and how a request handler treats it."""

    run: Callable[[Table, Request], Reply]
    changes_table: bool = True
    """Calls are written to the journal."""
    caches_reply: bool = True
    """A repeated request gets the first reply and is not executed again."""
    may_wait: bool = False
    """The limiter may make a call wait."""


def insert(table: Table, request: Request) -> Reply:
    steps = _read_steps(table, request.arrays)
    return Reply({}, {"key": table.insert(steps, request.arrays.get("priority"), NO_WAIT)})


def insert_items(table: Table, request: Request) -> Reply:
    start, length = _require_array(request.arrays, "start"), _require_array(request.arrays, "length")
    keys = table.insert_items(start, length, request.arrays.get("priority"), NO_WAIT)
    return Reply({}, {"key": keys})


def append(table: Table, request: Request) -> Reply:
    """Appends steps to the store and inserts items over them; does neither if the limiter does not allow it.

    An item is given by `start`, its first position, or by `last`, the index of its last step among these steps. A
    request may also say which positions its steps will get, so that a second writer to the same rows is detected.
    """
    arrays, store = request.arrays, table.store
    length = _require_array(arrays, "length")
    checked, n = store.check(_read_steps(table, arrays))
    rows = None if arrays.get("rows") is None else store.check_rows(arrays["rows"], n)
    last = arrays.get("last")
    if last is not None and (last.shape != length.shape or len(last) and not (0 <= last.min() <= last.max() < n)):
        raise WeftError(f"append of {n} steps: expected `last` from 0 to {n - 1}, and a `length` for each")
    with store.lock:
        table.wait_to_insert(len(length), NO_WAIT)
        _check_positions(table, arrays)
        positions = store.append_checked(checked, n, rows)
        starts = _require_array(arrays, "start") if last is None else positions[last] - (length - 1) * store.rows
        keys = table.insert_items(starts, length, arrays.get("priority"), NO_WAIT) if len(length) else NO_KEYS
    return Reply({}, {"position": positions, "key": keys})


def counts(table: Table, request: Request) -> Reply:
    """Returns how many steps have been appended to each row of the table's store."""
    with table.store.lock:
        return Reply({}, {"count": table.store.counts.copy()})


def sample(table: Table, request: Request) -> Reply:
    seed = None if request.args.get("seed") is None else _require_integer(request.args, "seed", minimum=0)
    n = _require_integer(request.args, "n")
    data, info = table.sample(n, NO_WAIT, seed=seed, pattern=_read_into(request.arena, table.pattern))
    if "pipeline" in request.args:
        data = Pipeline.from_json(str(request.args["pipeline"]))(data)
    infos = {name: value for name, value in info._asdict().items() if isinstance(value, np.ndarray)}
    return Reply({"table_size": info.table_size}, {**_sampled_columns(table, data), **infos})


def update(table: Table, request: Request) -> Reply:
    keys, priorities = _require_array(request.arrays, "key"), _require_array(request.arrays, "priority")
    return Reply({"found": table.update(keys, priorities)})


def delete(table: Table, request: Request) -> Reply:
    return Reply({"found": table.delete(_require_array(request.arrays, "key"))})


def reset(table: Table, request: Request) -> Reply:
    table.reset()
    return Reply()


def items(table: Table, request: Request) -> Reply:
    return Reply({}, table.items(request.arrays.get("key"))._asdict())


def info(table: Table, request: Request) -> Reply:
    return Reply(table.info())


def mass(table: Table, request: Request) -> Reply:
    """Returns the sum of the items' sampling weights, by which probabilities of several tables can be compared."""
    with table.store.lock:
        return Reply({"mass": _total_weight(table), "size": table.size})


def limiter(table: Table, request: Request) -> Reply:
    return Reply(limiter_args(table.limiter))


def set_limiter(table: Table, request: Request) -> Reply:
    table.limiter = read_limiter(request.args)
    return Reply()


METHODS = {
    "insert": Method(insert, may_wait=True),
    "insert_items": Method(insert_items, may_wait=True),
    "append": Method(append, may_wait=True),
    "sample": Method(sample, caches_reply=False, may_wait=True),
    "update": Method(update),
    "delete": Method(delete),
    "reset": Method(reset),
    "set_limiter": Method(set_limiter),
    "counts": Method(counts, changes_table=False, caches_reply=False),
    "items": Method(items, changes_table=False, caches_reply=False),
    "info": Method(info, changes_table=False, caches_reply=False),
    "mass": Method(mass, changes_table=False, caches_reply=False),
    "limiter": Method(limiter, changes_table=False, caches_reply=False),
}


def sample_bytes(table: Table, n: int) -> int:
    """Returns the approximate bytes of a sample of n items, to reject samples that do not fit into memory."""
    return n * (table.length * sum(column[:1].nbytes for column in table.store.columns) + 40)


class WholeIntoArena:
    """Reads the same steps as the pattern `Whole` into the arena that the reply is sent from.

    This saves a copy and a memory allocation for every sample.
    """

    def __init__(self, arena: Arena) -> None:
        self.arena = arena

    def read(self, store: Store, items: Items, longest: int) -> Any:
        steps = np.arange(longest)
        places = (items.start[:, None] + steps * store.rows if longest > 1 else items.start) % store.capacity
        columns: list[np.ndarray] = []
        for name, column in zip(store.structure.names, store.columns, strict=True):
            array = self.arena.allocate(COLUMN_PREFIX + name, (*places.shape, *column.shape[1:]), column.dtype)
            np.take(column, places, axis=0, out=array, mode="clip")
            columns.append(array)
        past_end = steps >= items.length[:, None]
        if past_end.any():
            for array in columns:
                array[past_end] = 0
        return store.structure.unflatten(columns)


def _read_into(arena: Arena | None, pattern: Pattern) -> Pattern:
    return pattern if arena is None or type(pattern) is not Whole else WholeIntoArena(arena)


def _sampled_columns(table: Table, data: Any) -> Arrays:
    """Returns the columns of sampled steps. After a pattern or pipeline they can differ from the table's columns."""
    structure = table.store.structure
    try:
        return column_arrays(structure, data)
    except WeftError:
        return column_arrays(type(structure)(data), data)


def _check_positions(table: Table, arrays: Arrays) -> None:
    """Raises if the steps would get other positions than the request says."""
    if "position" in arrays:
        store, (rows, first) = table.store, np.unique(_require_array(arrays, "rows"), return_index=True)
        if not np.array_equal(arrays["position"][first] // store.rows, store.counts[rows]):
            raise WeftError(
                f"table {table.name!r}: another writer has appended to the same rows. Give each writer its own rows"
            )


def _read_steps(table: Table, arrays: Arrays) -> Any:
    """Returns the steps of a request, nested as the store's signature."""
    structure = table.store.structure
    columns, _ = split_columns(arrays)
    if columns.keys() != set(structure.names):
        raise WeftError(
            f"expected steps with the columns {', '.join(structure.names)}; given {', '.join(columns) or 'none'}"
        )
    return structure.unflatten([columns[name] for name in structure.names])


def _total_weight(table: Table) -> float:
    total = table.sampler.total_weight()
    if total is None:
        raise WeftError(
            f"table {table.name!r} samples by {type(table.sampler).__name__}, which has no weights: only tables with "
            "weighted samplers, such as Uniform and Prioritised, can be spread over several servers"
        )
    return total


def _require_array(arrays: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    if name not in arrays:
        raise WeftError(f"the request needs an array {name!r}")
    return arrays[name]


def _require_integer(args: dict[str, Any], name: str, minimum: int = 1) -> int:
    value = args.get(name)
    if type(value) is not int or value < minimum:
        raise WeftError(f"the request needs an integer {name!r} of at least {minimum}; given {value!r}")
    return value
