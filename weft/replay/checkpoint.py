"""Checkpoints of tables: a consistent snapshot, with the random states, so that sampling resumes exactly.

>>> import tempfile
>>> path = Path(tempfile.mkdtemp()) / "saved"
>>> table = Table({"reward": np.float32(0)}, capacity=10, name="a")
>>> keys = table.insert({"reward": np.arange(5)})
>>> save(path, [table])
>>> again = restore(path)["a"]
>>> bool((table.sample(100).info.key == again.sample(100).info.key).all())
True

A checkpoint is a folder with `checkpoint.json` and a `.npy` file for each array. It is written under a temporary name
and renamed when it is complete on disk, so its own name never shows a partial checkpoint. The tables are locked only
while their arrays are copied in memory.

`restore` creates tables like the saved ones. Their steps are nested dictionaries; to keep the original types, patterns,
and selectors that are not registered, give `restore` tables created with the same arguments.
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
    """Write a consistent snapshot of all tables to a folder, and replace a checkpoint that exists there."""
    write(Path(path), capture(list(tables)))


def restore(path: str | Path, tables: Iterable[Table] | None = None) -> dict[str, Table]:
    """The tables of a checkpoint by name: new tables, or `tables` set to the saved state."""
    state = read(Path(path))
    existing = None if tables is None else {table.name: table for table in tables}
    return restore_tables(state, existing)


def capture(tables: list[Table], **extra: Any) -> dict[str, Any]:
    """A consistent snapshot of all tables, with `extra` entries: copies of arrays, and JSON values."""
    stores = list({id(table.store): table.store for table in tables}.values())
    with contextlib.ExitStack() as locks:
        # Always in the same order, to prevent a deadlock with another thread that captures.
        for store in sorted(stores, key=id):
            locks.enter_context(store.lock)
        numbers = {id(store): number for number, store in enumerate(stores)}
        return {
            "format": FORMAT,
            "stores": [_store_state(store) for store in stores],
            "tables": [{**_arguments(table), "store": numbers[id(table.store)], **table.state()} for table in tables],
            **extra,
        }


def restore_tables(state: dict[str, Any], existing: Mapping[str, Table] | None = None) -> dict[str, Table]:
    """The tables of a captured state: new tables, or the existing ones set to this state."""
    tables: dict[str, Table] = {}
    stores: dict[int, Store] = {}
    for saved in state["tables"]:
        name, number = saved["name"], saved["store"]
        if existing is not None and name not in existing:
            raise unknown("table", name, existing)
        store = stores.get(number)
        table = _new_table(saved, state["stores"][number], store) if existing is None else existing[name]
        if number not in stores:
            _restore_store(table.store, state["stores"][number], name)
            stores[number] = table.store
        if table.store is not stores[number]:
            raise WeftError(
                f"table {name!r} shared its store with another table when it was saved: give tables that share one"
            )
        table.restore(saved)
        table.limiter = Limiter(*saved["limiter"])
        tables[name] = table
    return tables


def write(path: Path, state: Any) -> None:
    """Write nested dictionaries and lists of arrays and JSON values to a folder, atomically."""
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
        _replace_folder(partial, path)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise WeftError(f"the checkpoint {path} cannot be written: {error.strerror or error}") from error


def read(path: Path) -> Any:
    """The state that `write` wrote."""
    if not path.exists() and _backup_path(path).exists():
        path = _backup_path(path)
    try:
        state = json.loads((path / "checkpoint.json").read_bytes())
        if not isinstance(state, dict) or state.get("format") != FORMAT:
            raise WeftError(f"{path} is not a checkpoint of this version of weft")
        return _with_arrays(state, path)
    except (OSError, ValueError, EOFError) as error:
        raise WeftError(f"there is no complete checkpoint at {path}: {error}") from error


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


def _arguments(table: Table) -> dict[str, Any]:
    """The arguments that create a table like this one."""
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


def _new_table(saved: dict[str, Any], store: dict[str, Any], shared: Store | None) -> Table:
    """An empty table like the saved one."""
    if not saved["whole"]:
        raise WeftError(
            f"table {saved['name']!r} has a pattern, which checkpoints do not store: give restore a table made "
            "with the same arguments"
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
    """The tree with each array moved to the list and replaced by its index there."""
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
    """A new file that is synced to disk when the context ends."""
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


def _backup_path(path: Path) -> Path:
    """The previous checkpoint's path during replacement; it stays there if the process dies then."""
    return path.with_name(f".{path.name}.before")


def _replace_folder(partial: Path, path: Path) -> None:
    """Rename `partial` to `path`; a previous checkpoint is moved away first and deleted last."""
    backup = _backup_path(path)
    if path.exists():
        shutil.rmtree(backup, ignore_errors=True)
        path.rename(backup)
    partial.rename(path)
    _sync_folder(path.parent)
    shutil.rmtree(backup, ignore_errors=True)
