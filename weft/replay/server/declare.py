"""Creates tables from declarations in a TOML or JSON file, or on the command line.

>>> table = declare("a", {"capacity": 100, "columns": {"obs/vector": "float32[4]", "reward": "float32"}})
>>> table.store.structure.names, table.capacity
(('obs/vector', 'reward'), 100)

A file has a section for every table:

    [tables.experience]
    capacity = 100000
    sampler = "prioritised:0.6"
    limiter = "samples_per_insert:4,1000,100"
    columns = { obs = "float32[4]", action = "int32", reward = "float32" }

- `sampler`, `remover`: uniform, prioritised[:exponent], fifo, lifo, minheap or maxheap, or another name in `SELECTORS`;
- `limiter`: minimum:n, samples_per_insert:ratio,minimum,error, queue:n or stack:n;
- `length`: the maximum number of steps of an item;
- `rows`, `steps`: the number of environments, and the steps of all environments together that the store holds;
- `store`: the name of an earlier table; both tables then share its store.

On the command line the same table is `experience capacity=100000 sampler=prioritised:0.6 ... obs=float32[4]`.
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
    """Returns the tables declared in a file: JSON if its name ends with .json, else TOML."""
    try:
        text = Path(path).read_text()
        declared = json.loads(text) if str(path).endswith(".json") else tomllib.loads(text)
    except (OSError, ValueError) as error:
        raise WeftError(f"the declarations of tables in {path} cannot be read: {error}") from error
    tables = declared.get("tables") if isinstance(declared, dict) else None
    if not isinstance(tables, dict) or not tables:
        raise WeftError(f"{path} declares no tables: expected a section [tables.NAME] for each table")
    return declare_all(tables)


def declare_all(declared: Mapping[str, Any]) -> list[Table]:
    """Creates tables from their options, by name; a table can share the store of an earlier one."""
    tables: dict[str, Table] = {}
    for name, options in declared.items():
        tables[name] = declare(name, options, tables)
    return list(tables.values())


def declare(name: str, options: Any, earlier: Mapping[str, Table] | None = None) -> Table:
    """Creates one table from its options; it can share the stores of `earlier` tables."""
    if not isinstance(options, dict):
        raise WeftError(f"table {name!r} is declared as {options!r}: expected options, such as capacity = 1000")
    for option in options:
        if option not in OPTIONS:
            raise unknown(f"option of table {name!r}:", option, OPTIONS)
    numbers = {option: _check_integer(name, option, options[option]) for option in NUMBERS if option in options}
    if "capacity" not in numbers:
        raise WeftError(f"table {name!r} has no capacity: give its maximum number of items, e.g. capacity = 100000")
    settings: dict[str, Any] = {
        key: numbers[key] for key in ("capacity", "length", "max_times_sampled", "seed") if key in numbers
    }
    for role, parse in PARSERS.items():
        if role in options:
            settings[role] = parse(str(options[role]), f"{role} of table {name!r}")
    return Table(**_storage(name, options, numbers, earlier or {}), name=name, **settings)


def parse_options(arguments: Sequence[str]) -> dict[str, Any]:
    """Returns the options of a table from command-line arguments `option=value` or `column=type`.

    >>> parse_options(["capacity=10", "reward=float32"])
    {'capacity': 10, 'columns': {'reward': 'float32'}}
    """
    options: dict[str, Any] = {"columns": {}}
    for argument in arguments:
        option, equals, value = argument.partition("=")
        if not equals:
            raise WeftError(f"{argument!r} is not of the form option=value or column=type")
        if option not in OPTIONS:
            options["columns"][option] = value
        else:
            options[option] = int(value) if option in NUMBERS and value.isdecimal() else value
    columns = options.pop("columns")
    return {**options, "columns": columns} if columns else options


def _storage(
    name: str, options: dict[str, Any], numbers: dict[str, int], earlier: Mapping[str, Table]
) -> dict[str, Any]:
    """Returns the argument of `Table` for its steps: a signature, or a store."""
    if "store" in options:
        if options["store"] not in earlier:
            raise unknown(f"table before {name!r} to share a store with:", str(options["store"]), earlier)
        return {"store": earlier[options["store"]].store}
    columns = options.get("columns")
    if not isinstance(columns, dict) or not columns:
        raise WeftError(f"table {name!r} has no columns: give the columns of a step, e.g. reward = float32")
    signature = by_name(list(columns), [_parse_column(name, column, text) for column, text in columns.items()])
    if "rows" not in numbers and "steps" not in numbers and numbers.get("length", 1) == 1:
        return {"signature": signature}
    steps = numbers.get("steps", numbers["capacity"] * numbers.get("length", 1))
    return {"store": Store(signature, steps, numbers.get("rows", 1))}


def _parse_column(table: str, column: str, text: Any) -> np.ndarray:
    """Returns an array with the dtype and shape that the text declares."""
    match = COLUMN.fullmatch(text) if isinstance(text, str) else None
    try:
        dtype = np.dtype(match[1] if match else "O")
    except TypeError:
        dtype = np.dtype("O")
    if match is None or dtype.kind not in "biufc":
        raise WeftError(
            f"column {column!r} of table {table!r} is {text!r}: expected a dtype and a shape, e.g. float32[4]"
        )
    shape = tuple(int(side) for side in (match[2] or "").split(",") if side.strip())
    return np.broadcast_to(np.zeros((), dtype), shape)


def _check_integer(table: str, option: str, value: Any) -> int:
    if type(value) is not int or value < 0:
        raise WeftError(f"{option} of table {table!r} is {value!r}: expected an integer, at least 0")
    return value
