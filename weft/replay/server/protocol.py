"""The requests that a client sends and the replies that a server returns.

A request names a method and a table, and has arguments (a JSON object) and arrays. A reply has a result (a JSON object)
and arrays. A column of steps is sent as an array named `data/` and the column's name.
"""

from collections.abc import Mapping
from dataclasses import astuple
from typing import Any, NamedTuple

import numpy as np

from weft.errors import WeftError
from weft.replay.limiter import Limiter
from weft.replay.nested import Structure
from weft.replay.server import wire
from weft.replay.server.arena import Arena

COLUMN_PREFIX = "data/"
LIMITER_ARGS = ("ratio", "minimum", "least", "most")
"""The names under which the fields of a `Limiter` are sent, in the order of the fields."""

Arrays = dict[str, np.ndarray]


class Request(NamedTuple):
    """A client's request. The client's name and the number identify it, also when it is sent again."""

    client: str
    number: int
    method: str
    table: str
    args: dict[str, Any]
    arrays: Arrays
    arena: Arena | None = None
    """Memory for the arrays of the reply."""

    @staticmethod
    def parse(client: str, message: wire.Message) -> "Request":
        head = message.head
        number, method, table, args = (head.get(name) for name in ("id", "method", "table", "args"))
        if type(number) is not int or not isinstance(method, str) or not isinstance(table, str):
            raise wire.WireError("received a request without a number, a method or a table")
        if not isinstance(args, dict):
            raise wire.WireError("received a request with arguments that are not a JSON object")
        return Request(client, number, method, table, args, message.arrays)

    @property
    def timeout(self) -> float | None:
        value = self.args.get("timeout")
        if value is not None and (type(value) not in (int, float) or not value >= 0):
            raise WeftError(f"timeout is {value!r}: expected a number of seconds, at least 0, or None")
        return value


class Reply(NamedTuple):
    """The answer to a request."""

    result: dict[str, Any] = {}
    arrays: Mapping[str, np.ndarray] = {}


def column_arrays(structure: Structure, steps: Any) -> Arrays:
    """Returns the columns of steps as arrays to send."""
    leaves = structure.flatten(steps)
    return {COLUMN_PREFIX + name: np.asarray(leaf) for name, leaf in zip(structure.names, leaves, strict=True)}


def split_columns(arrays: Mapping[str, np.ndarray]) -> tuple[Arrays, Arrays]:
    """Splits received arrays into the columns of steps, by column name, and all others."""
    columns = {name.removeprefix(COLUMN_PREFIX): arrays[name] for name in arrays if name.startswith(COLUMN_PREFIX)}
    return columns, {name: arrays[name] for name in arrays if not name.startswith(COLUMN_PREFIX)}


def limiter_args(limiter: Limiter) -> dict[str, Any]:
    return dict(zip(LIMITER_ARGS, astuple(limiter), strict=True))


def read_limiter(args: Mapping[str, Any]) -> Limiter:
    """Returns the limiter that `limiter_args` describes."""
    ratio, minimum, lowest, highest = (args.get(name) for name in LIMITER_ARGS)
    return Limiter(float(ratio), int(minimum), float(lowest), float(highest))  # pyright: ignore
