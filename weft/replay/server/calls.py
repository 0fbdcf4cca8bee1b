"""What can be asked of a served table, each as a function of the request's arguments and arrays.

A `Call` says whether it changes a table (then it is logged), whether its answer is remembered (then a repeated request
gets the same answer and is not carried out again), and whether it may have to wait for a limiter. Calls are carried out
without waiting: what the limiter does not allow raises, and is tried again (see `service`).
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from weft.errors import WeftError
from weft.replay.limiter import Limiter
from weft.replay.pipeline import Pipeline
from weft.replay.server import shared, wire
from weft.replay.server.reading import DATA, reading_into
from weft.replay.table import Table

NOW = 0.0
"""The time that calls wait here."""
NOBODY = np.empty(0, np.uint64)
LIMITER = ("ratio", "minimum", "least", "most")

Arrays = dict[str, np.ndarray]


class Request(NamedTuple):
    """What a client asks."""

    client: str
    number: int
    method: str
    table: str
    args: dict[str, Any]
    arrays: dict[str, np.ndarray]
    room: shared.Room | None = None
    """Memory that the arrays of the reply may be written to."""

    @staticmethod
    def of(client: str, message: wire.Message) -> "Request":
        head = message.head
        number, method, table, args = (head.get(name) for name in ("id", "method", "table", "args"))
        if type(number) is not int or not isinstance(method, str) or not isinstance(table, str):
            raise wire.WireError("a request came without a number, a method or a table")
        if not isinstance(args, dict):
            raise wire.WireError("a request came whose arguments are not an object")
        return Request(client, number, method, table, args, message.arrays)

    @property
    def timeout(self) -> float | None:
        value = self.args.get("timeout")
        if value is not None and (type(value) not in (int, float) or not value >= 0):
            raise WeftError(f"a timeout is a number of seconds, or none; given {value!r}")
        return value


class Reply(NamedTuple):
    """An answer: values that JSON can hold, and arrays."""

    result: dict[str, Any] = {}
    arrays: Mapping[str, np.ndarray] = {}


class Call(NamedTuple):
    """One thing that can be asked."""

    run: Callable[[Table, Request], Reply]
    changes: bool = True
    remembered: bool = True
    waits: bool = False


def insert(table: Table, request: Request) -> Reply:
    return Reply({}, {"key": table.insert(_steps(table, request.arrays), request.arrays.get("priority"), NOW)})


def insert_items(table: Table, request: Request) -> Reply:
    start, length = _needed(request.arrays, "start"), _needed(request.arrays, "length")
    keys = table.insert_items(start, length, request.arrays.get("priority"), NOW)
    return Reply({}, {"key": keys})


def append(table: Table, request: Request) -> Reply:
    """Steps for the store and items over them: all or, where the limiter does not allow it, nothing.

    Items are given by their `start`, or by the `last` of these steps that they have. Who knows what positions the steps
    will have says them, so that nothing is written to rows that somebody else has written to.
    """
    arrays, store = request.arrays, table.store
    length = _needed(arrays, "length")
    checked, n = store.check(_steps(table, arrays))
    rows = None if arrays.get("rows") is None else store.check_rows(arrays["rows"], n)
    last = arrays.get("last")
    if last is not None and (last.shape != length.shape or len(last) and not (0 <= last.min() <= last.max() < n)):
        raise WeftError(f"items end with steps of this append, numbered from 0 to {n - 1}, and each has a length")
    with store.lock:
        table.allow_insert(len(length), NOW)
        _refuse_others(table, arrays)
        positions = store.append_checked(checked, n, rows)
        starts = _needed(arrays, "start") if last is None else positions[last] - (length - 1) * store.rows
        keys = table.insert_items(starts, length, arrays.get("priority"), NOW) if len(length) else NOBODY
    return Reply({}, {"position": positions, "key": keys})


def counts(table: Table, request: Request) -> Reply:
    """How many steps each row of the table's store has had."""
    with table.store.lock:
        return Reply({}, {"count": table.store.counts.copy()})


def sample(table: Table, request: Request) -> Reply:
    seed = None if request.args.get("seed") is None else _whole(request.args, "seed", least=0)
    n = _whole(request.args, "n")
    data, info = table.sample(n, NOW, seed=seed, pattern=reading_into(request.room, table.pattern))
    if "pipeline" in request.args:
        data = Pipeline.from_json(str(request.args["pipeline"]))(data)
    return Reply({"table_size": info.table_size}, {**columns(table, data), **_arrays(info._asdict())})


def update(table: Table, request: Request) -> Reply:
    return Reply({"found": table.update(_needed(request.arrays, "key"), _needed(request.arrays, "priority"))})


def delete(table: Table, request: Request) -> Reply:
    return Reply({"found": table.delete(_needed(request.arrays, "key"))})


def reset(table: Table, request: Request) -> Reply:
    table.reset()
    return Reply()


def items(table: Table, request: Request) -> Reply:
    return Reply({}, table.items(request.arrays.get("key"))._asdict())


def info(table: Table, request: Request) -> Reply:
    return Reply(table.info())


def mass(table: Table, request: Request) -> Reply:
    """What the probabilities of a table are shares of: they are comparable between tables after multiplying by it."""
    with table.store.lock:
        return Reply({"mass": _mass(table), "size": table.size})


def limiter(table: Table, request: Request) -> Reply:
    return Reply({name: getattr(table.limiter, name) for name in LIMITER})


def set_limiter(table: Table, request: Request) -> Reply:
    ratio, minimum, least, most = (request.args.get(name) for name in LIMITER)
    table.limiter = Limiter(float(ratio), int(minimum), float(least), float(most))  # pyright: ignore
    return Reply()


CALLS = {
    "insert": Call(insert, waits=True),
    "insert_items": Call(insert_items, waits=True),
    "append": Call(append, waits=True),
    "sample": Call(sample, remembered=False, waits=True),
    "update": Call(update),
    "delete": Call(delete),
    "reset": Call(reset),
    "set_limiter": Call(set_limiter),
    "counts": Call(counts, changes=False, remembered=False),
    "items": Call(items, changes=False, remembered=False),
    "info": Call(info, changes=False, remembered=False),
    "mass": Call(mass, changes=False, remembered=False),
    "limiter": Call(limiter, changes=False, remembered=False),
}


def bytes_of_sample(table: Table, n: int) -> int:
    """About how many bytes a sample of n items has: so that nobody asks for more than there is memory."""
    return n * (table.length * sum(column[:1].nbytes for column in table.store.columns) + 40)


def columns(table: Table, data: Any) -> Arrays:
    """The columns of sampled steps by name, whatever a pattern made of them."""
    structure = table.store.structure
    try:
        return {DATA + name: leaf for name, leaf in zip(structure.names, structure.flatten(data), strict=True)}
    except WeftError:
        other = type(structure)(data)
        return {DATA + name: leaf for name, leaf in zip(other.names, other.flatten(data), strict=True)}


def _refuse_others(table: Table, arrays: Arrays) -> None:
    """Refuse steps whose positions are not those that they would come to."""
    if "position" in arrays:
        store, (rows, first) = table.store, np.unique(_needed(arrays, "rows"), return_index=True)
        if not np.array_equal(arrays["position"][first] // store.rows, store.counts[rows]):
            raise WeftError(f"rows of table {table.name!r} were written to by another: each writer needs its own rows")


def _steps(table: Table, arrays: Arrays) -> Any:
    """The steps of a request in the form that the store wants."""
    structure = table.store.structure
    given = {name[len(DATA) :]: array for name, array in arrays.items() if name.startswith(DATA)}
    if given.keys() != set(structure.names):
        raise WeftError(
            f"expected steps with the columns {', '.join(structure.names)}; given {', '.join(given) or 'none'}"
        )
    return structure.unflatten([given[name] for name in structure.names])


def _mass(table: Table) -> float:
    total = table.sampler.total_weight()
    if total is None:
        raise WeftError(
            f"table {table.name!r} samples by {type(table.sampler).__name__}, which has no weights: only tables whose "
            "sampler has weights, such as Uniform and Prioritised, can be spread over servers"
        )
    return total


def _arrays(values: Mapping[str, Any]) -> Arrays:
    return {name: value for name, value in values.items() if isinstance(value, np.ndarray)}


def _needed(arrays: Arrays, name: str) -> np.ndarray:
    if name not in arrays:
        raise WeftError(f"the request needs an array {name!r}")
    return arrays[name]


def _whole(args: dict[str, Any], name: str, least: int = 1) -> int:
    value = args.get(name)
    if type(value) is not int or value < least:
        raise WeftError(f"the request needs a whole number {name!r} of at least {least}; given {value!r}")
    return value
