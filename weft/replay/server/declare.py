"""Tables declared in words: in a TOML or JSON file, or on a command line.

>>> table = declare("a", {"capacity": 100, "columns": {"obs/place": "float32[4]", "reward": "float32"}})
>>> table.store.structure.names, table.capacity
(('obs/place', 'reward'), 100)

A file has a section for every table:

    [tables.experience]
    capacity = 100000
    sampler = "prioritised:0.6"
    limiter = "samples_per_insert:4,1000,100"
    columns = { obs = "float32[4]", action = "int32", reward = "float32" }

`sampler` and `remover` are uniform, prioritised[:exponent], fifo, lifo, minheap or maxheap; `limiter` is minimum:n,
samples_per_insert:ratio,minimum,error, queue:n or stack:n. For items of several steps give their `length`; `rows` is
the number of environments and `steps` the steps of all of them that are kept; `store` names another table to share
them with.
"""

import json
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from weft.errors import WeftError, unknown
from weft.replay.limiter import parse_limiter
from weft.replay.nested import by_name
from weft.replay.selectors import parse_selector
from weft.replay.store import Store
from weft.replay.table import Table

PARSERS: dict[str, Callable[[str, str], Any]] = {
    "sampler": parse_selector,
    "remover": parse_selector,
    "limiter": parse_limiter,
}
NUMBERS = ("capacity", "length", "rows", "steps", "max_times_sampled", "seed")
OPTIONS = (*NUMBERS, "sampler", "remover", "limiter", "store", "columns")
COLUMN = re.compile(r"(\w+)(?:\[([\d,\s]*)\])?")


def read_tables(path: str | Path) -> list[Table]:
    """The tables that a file declares; JSON if its name says so, else TOML."""
    try:
        text = Path(path).read_text()
        declared = json.loads(text) if str(path).endswith(".json") else tomllib.loads(text)
    except (OSError, ValueError) as error:
        raise WeftError(f"the tables' file {path} cannot be read: {error}") from error
    tables = declared.get("tables") if isinstance(declared, dict) else None
    if not isinstance(tables, dict) or not tables:
        raise WeftError(f"{path} declares no tables: expected a section [tables.NAME] for each")
    return declare_all(tables)


def declare_all(declared: Mapping[str, Any]) -> list[Table]:
    """Tables by their declarations; one may share the store of another that stands before it."""
    made: dict[str, Table] = {}
    for name, options in declared.items():
        made[name] = declare(name, options, made)
    return list(made.values())


def declare(name: str, options: Any, others: Mapping[str, Table] | None = None) -> Table:
    """One table by its declaration."""
    if not isinstance(options, dict):
        raise WeftError(f"table {name!r} is declared as {options!r}: expected options, such as capacity = 1000")
    for option in options:
        if option not in OPTIONS:
            raise unknown(f"option of table {name!r}:", option, OPTIONS)
    numbers = {option: _whole(name, option, options[option]) for option in NUMBERS if option in options}
    if "capacity" not in numbers:
        raise WeftError(f"table {name!r} has no capacity: say how many items it holds, e.g. capacity = 100000")
    settings: dict[str, Any] = {
        key: numbers[key] for key in ("capacity", "length", "max_times_sampled", "seed") if key in numbers
    }
    for role, parse in PARSERS.items():
        if role in options:
            settings[role] = parse(str(options[role]), f"{role} of table {name!r}")
    return Table(**_where(name, options, numbers, others or {}), name=name, **settings)


def read_words(words: Sequence[str]) -> dict[str, Any]:
    """A declaration from `option=value` words; what is not an option is a column.

    >>> read_words(["capacity=10", "reward=float32"])
    {'capacity': 10, 'columns': {'reward': 'float32'}}
    """
    options: dict[str, Any] = {"columns": {}}
    for word in words:
        option, equals, value = word.partition("=")
        if not equals:
            raise WeftError(f"{word!r} is not of the form option=value or column=type")
        if option not in OPTIONS:
            options["columns"][option] = value
        else:
            options[option] = int(value) if option in NUMBERS and value.isdecimal() else value
    columns = options.pop("columns")
    return {**options, "columns": columns} if columns else options


def _where(name: str, options: dict[str, Any], numbers: dict[str, int], others: Mapping[str, Table]) -> dict[str, Any]:
    """The arguments that say where a table's steps are."""
    if "store" in options:
        if options["store"] not in others:
            raise unknown(f"table before {name!r} to share a store with:", str(options["store"]), others)
        return {"store": others[options["store"]].store}
    columns = options.get("columns")
    if not isinstance(columns, dict) or not columns:
        raise WeftError(f"table {name!r} has no columns: say what a step has, e.g. reward = float32")
    signature = by_name(list(columns), [_column(name, column, kind) for column, kind in columns.items()])
    if "rows" not in numbers and "steps" not in numbers and numbers.get("length", 1) == 1:
        return {"signature": signature}
    steps = numbers.get("steps", numbers["capacity"] * numbers.get("length", 1))
    return {"store": Store(signature, steps, numbers.get("rows", 1))}


def _column(table: str, column: str, kind: Any) -> np.ndarray:
    match = COLUMN.fullmatch(kind) if isinstance(kind, str) else None
    try:
        dtype = np.dtype(match[1] if match else "O")
    except TypeError:
        dtype = np.dtype("O")
    if match is None or dtype.kind not in "biufc":
        raise WeftError(
            f"column {column!r} of table {table!r} is {kind!r}: expected a type and a shape, e.g. float32[4]"
        )
    shape = tuple(int(side) for side in (match[2] or "").split(",") if side.strip())
    return np.broadcast_to(np.zeros((), dtype), shape)


def _whole(table: str, option: str, value: Any) -> int:
    if type(value) is not int or value < 0:
        raise WeftError(f"{option} of table {table!r} is {value!r}: expected a whole number")
    return value
