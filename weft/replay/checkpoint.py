"""Tables on disk: all of them as they were at one moment, with their random states, so that sampling goes on exactly.

>>> import tempfile
>>> path = Path(tempfile.mkdtemp()) / "saved"
>>> table = Table({"reward": np.float32(0)}, capacity=10, name="a")
>>> keys = table.insert({"reward": np.arange(5)})
>>> save(path, [table])
>>> again = restore(path)["a"]
>>> bool((table.sample(100).info.key == again.sample(100).info.key).all())
True

A checkpoint is a folder: `checkpoint.json`, and a `.npy` file for every array. It is written beside its place and
renamed when all of it is on the disk, so under its name there is never half of one. The tables are held only while
their arrays are copied in memory; what is written is the copy.

`restore` makes tables like those that were saved. Steps then have the form of nested dictionaries; to have their own
types back, or selectors and patterns of one's own, give `restore` tables made with the same arguments.
"""

import contextlib
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from weft.errors import WeftError, unknown
from weft.replay.limiter import Limiter
from weft.replay.nested import by_name
from weft.replay.patterns import Whole
from weft.replay.selector import Selector
from weft.replay.selectors import describe_selector, make_selector
from weft.replay.store import Store
from weft.replay.table import Table

FORMAT = 1
ARRAY = "$array"


def save(path: str | Path, tables: Iterable[Table]) -> None:
    """Write all tables, as they are at one moment, to a new folder; one that is there is replaced."""
    write(Path(path), capture(list(tables)))


def restore(path: str | Path, tables: Iterable[Table] | None = None) -> dict[str, Table]:
    """The tables of a checkpoint by name: new ones, or the given ones in the saved state."""
    state = read(Path(path))
    given = None if tables is None else {table.name: table for table in tables}
    return restore_tables(state, given)


def capture(tables: list[Table], **also: Any) -> dict[str, Any]:
    """The state of all tables at one moment: copies of arrays, and values that JSON can hold."""
    stores = list({id(table.store): table.store for table in tables}.values())
    with contextlib.ExitStack() as held:
        # Always in the same order, so that two who do this never wait for each other.
        for store in sorted(stores, key=id):
            held.enter_context(store.lock)
        numbers = {id(store): number for number, store in enumerate(stores)}
        return {
            "format": FORMAT,
            "stores": [_store_state(store) for store in stores],
            "tables": [{**_described(table), "store": numbers[id(table.store)], **table.state()} for table in tables],
            **also,
        }


def restore_tables(state: dict[str, Any], given: Mapping[str, Table] | None = None) -> dict[str, Table]:
    """Tables in a captured state."""
    tables: dict[str, Table] = {}
    stores: dict[int, Store] = {}
    for saved in state["tables"]:
        name, number = saved["name"], saved["store"]
        if given is not None and name not in given:
            raise unknown("table", name, given)
        table = _made(saved, state["stores"][number], stores.get(number)) if given is None else given[name]
        if number not in stores:
            _restore_store(table.store, state["stores"][number], name)
            stores[number] = table.store
        if table.store is not stores[number]:
            raise WeftError(f"table {name!r} shared its store with another when it was saved: give tables that do")
        table.restore(saved)
        table.limiter = Limiter(*saved["limiter"])
        tables[name] = table
    return tables


def write(path: Path, state: Any) -> None:
    """Write nested dictionaries and lists of arrays and JSON values to a folder, all or nothing."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        arrays: list[np.ndarray] = []
        text = json.dumps(_without_arrays(state, arrays))
        for number, array in enumerate(arrays):
            with _synced(partial / f"{number}.npy") as file:
                np.save(file, array, allow_pickle=False)
        with _synced(partial / "checkpoint.json") as file:
            file.write(text.encode())
        _sync_folder(partial)
        _put_in_place(partial, path)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise WeftError(f"the checkpoint {path} cannot be written: {error.strerror or error}") from error


def read(path: Path) -> Any:
    """What `write` wrote."""
    if not path.exists() and _before(path).exists():
        path = _before(path)
    try:
        state = json.loads((path / "checkpoint.json").read_bytes())
        if not isinstance(state, dict) or state.get("format") != FORMAT:
            raise WeftError(f"{path} is not a checkpoint of this version of weft")
        return _with_arrays(state, path)
    except (OSError, ValueError, EOFError) as error:
        raise WeftError(f"there is no whole checkpoint at {path}: {error}") from error


def _store_state(store: Store) -> dict[str, Any]:
    state = store.state()
    columns = {name: column.copy() for name, column in state["columns"].items()}
    return {**state, "columns": columns, "rows": store.rows, "places": store.capacity, "signature": _signature(store)}


def _signature(store: Store) -> list[list[Any]]:
    return [[column.name, column.dtype.str, list(column.shape)] for column in store.structure.columns]


def _restore_store(store: Store, saved: dict[str, Any], table: str) -> None:
    if _signature(store) != saved["signature"] or (store.rows, store.capacity) != (saved["rows"], saved["places"]):
        raise WeftError(
            f"table {table!r} stores {store.capacity} steps in {store.rows} rows of {_signature(store)}; the "
            f"checkpoint has {saved['places']} steps in {saved['rows']} rows of {saved['signature']}: give a "
            "table made with the same arguments"
        )
    store.restore(saved)


def _described(table: Table) -> dict[str, Any]:
    """The arguments that a table was made with."""
    limiter = table.limiter
    return {
        "name": table.name,
        "capacity": table.capacity,
        "length": table.length,
        "max_times_sampled": table.max_times_sampled,
        "owns_store": table.owns_store,
        "limiter": [limiter.ratio, limiter.minimum, limiter.least, limiter.most],
        "kinds": {"sampler": describe_selector(table.sampler), "remover": describe_selector(table.remover)},
        "whole": type(table.pattern) is Whole,
    }


def _made(saved: dict[str, Any], store: dict[str, Any], shared: Store | None) -> Table:
    """A table like the one that was saved."""
    if not saved["whole"]:
        raise WeftError(
            f"table {saved['name']!r} reads by a pattern: give restore a table made with the same arguments"
        )
    names = [name for name, _, _ in store["signature"]]
    leaves = [np.zeros(shape, dtype) for _, dtype, shape in store["signature"]]
    options = {name: saved[name] for name in ("name", "capacity", "length", "max_times_sampled")}
    options |= {role: _selector(saved["name"], description) for role, description in saved["kinds"].items()}
    if shared is None and saved["owns_store"]:
        return Table(by_name(names, leaves), **options)
    return Table(store=shared or Store(by_name(names, leaves), store["places"], store["rows"]), **options)


def _selector(table: str, description: list[Any]) -> Selector:
    selector = make_selector(description)
    if selector is None:
        raise WeftError(
            f"table {table!r} has a selector {description[0]!r} that is not registered: give restore a table made with "
            "one, or add its class to weft.replay.selectors.SELECTORS"
        )
    return selector


def _without_arrays(tree: Any, arrays: list[np.ndarray]) -> Any:
    """The tree with every array replaced by its number in the list."""
    if isinstance(tree, Mapping):
        return {name: _without_arrays(part, arrays) for name, part in tree.items()}
    if isinstance(tree, list | tuple):
        return [_without_arrays(part, arrays) for part in tree]
    if isinstance(tree, np.ndarray):
        arrays.append(tree)
        return {ARRAY: len(arrays) - 1}
    return tree.item() if isinstance(tree, np.generic) else tree


def _with_arrays(tree: Any, path: Path) -> Any:
    if isinstance(tree, list):
        return [_with_arrays(part, path) for part in tree]
    if not isinstance(tree, dict):
        return tree
    if tree.keys() == {ARRAY}:
        return np.load(path / f"{int(tree[ARRAY])}.npy", allow_pickle=False)
    return {name: _with_arrays(part, path) for name, part in tree.items()}


@contextlib.contextmanager
def _synced(path: Path) -> Any:
    """A new file that is on the disk when it is closed."""
    with path.open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _before(path: Path) -> Path:
    """Where a checkpoint is while it is replaced: a process that dies just then leaves it there."""
    return path.with_name(f".{path.name}.before")


def _put_in_place(partial: Path, path: Path) -> None:
    """Rename; what was there before is moved away first and deleted after."""
    before = _before(path)
    if path.exists():
        shutil.rmtree(before, ignore_errors=True)
        path.rename(before)
    partial.rename(path)
    _sync_folder(path.parent)
    shutil.rmtree(before, ignore_errors=True)
