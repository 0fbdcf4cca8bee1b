"""Pipelines: what is done to every batch, declared as data, so that a server can do it before anything is moved.

>>> pipeline = Pipeline().concat(("obs", "goal"), into="x").reduce("reward", "sum", axis=1).drop("goal", "obs")
>>> batch = {"obs": np.ones((2, 3)), "goal": np.zeros((2, 1)), "reward": np.array([[1, 2], [3, 4]])}
>>> {name: column.tolist() for name, column in pipeline(batch).items()}
{'reward': [3, 7], 'x': [[1.0, 1.0, 1.0, 0.0], [1.0, 1.0, 1.0, 0.0]]}
>>> Pipeline.from_json(pipeline.to_json()) == pipeline
True

Columns have the names of the store: "obs/pixels" is inside "obs". The first axis is that of the batch.
"""

import inspect
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.errors import WeftError, unknown
from weft.replay.nested import Structure, by_name

Columns = dict[str, np.ndarray]
Stage = tuple[str, dict[str, Any]]
"""The name of an operation, and its arguments: numbers, text and lists of these."""

MOST = 1 << 32
"""Bytes of a column that is made of others, at most."""
REDUCE: dict[str, Callable[..., Any]] = {
    "sum": np.sum,
    "mean": np.mean,
    "max": np.max,
    "min": np.min,
    "any": np.any,
    "all": np.all,
}


@dataclass(frozen=True)
class Pipeline:
    """Operations on the columns of a batch, one after the other; every method gives a longer pipeline."""

    stages: tuple[Stage, ...] = ()

    def __call__(self, data: Any) -> Any:
        """The batch, nested, after all operations; as nested dictionaries."""
        structure = Structure(data)
        columns = dict(zip(structure.names, structure.flatten(data), strict=True))
        for name, arguments in self.stages:
            try:
                OPERATIONS[name](columns, **arguments)
            except (ValueError, IndexError, TypeError) as error:
                raise WeftError(f"pipeline: {name} of {_short(arguments)} is not possible: {error}") from error
        return by_name(list(columns), columns.values())

    def concat(self, names: Sequence[str], into: str, axis: int = -1) -> "Pipeline":
        """Columns one after the other along an axis, as a new column."""
        return self._with("concat", names=list(names), into=into, axis=axis)

    def stack(self, names: Sequence[str], into: str, axis: int = 1) -> "Pipeline":
        """Columns beside each other along a new axis, as a new column."""
        return self._with("stack", names=list(names), into=into, axis=axis)

    def slice(self, name: str, start: int | None, stop: int | None, axis: int = 1) -> "Pipeline":
        """A part of a column along an axis."""
        return self._with("slice", name=name, start=start, stop=stop, axis=axis)

    def transpose(self, name: str, *axes: int) -> "Pipeline":
        """The axes of a column in another order."""
        return self._with("transpose", name=name, axes=list(axes))

    def reduce(self, name: str, how: str, axis: int = 1) -> "Pipeline":
        """A column without an axis: its "sum", "mean", "max", "min", "any" or "all"."""
        return self._with("reduce", name=name, how=how, axis=axis)

    def cast(self, name: str, dtype: Any) -> "Pipeline":
        """A column as another type of number."""
        return self._with("cast", name=name, dtype=np.dtype(dtype).str)

    def rename(self, name: str, into: str) -> "Pipeline":
        """A column under another name."""
        return self._with("rename", name=name, into=into)

    def drop(self, *names: str) -> "Pipeline":
        """Without some columns."""
        return self._with("drop", names=list(names))

    def keep(self, *names: str) -> "Pipeline":
        """Without all other columns."""
        return self._with("keep", names=list(names))

    def to_json(self) -> str:
        return json.dumps(self.stages)

    @classmethod
    def from_json(cls, text: str) -> "Pipeline":
        """The pipeline of a text from anybody: refused unless it is one."""
        try:
            stages = [(str(name), dict(arguments)) for name, arguments in json.loads(text)]
        except (ValueError, TypeError) as error:
            raise WeftError(f"pipeline: expected JSON as to_json gives it; given {text[:60]!r}") from error
        pipeline = cls()
        for name, arguments in stages:
            pipeline = pipeline._with(name, **arguments)
        return pipeline

    def _with(self, operation: str, **arguments: Any) -> "Pipeline":
        _check(operation, arguments)
        return Pipeline((*self.stages, (operation, arguments)))


def _concat(columns: Columns, names: list[str], into: str, axis: int) -> None:
    columns[into] = np.concatenate(_together(columns, names), axis=axis)


def _stack(columns: Columns, names: list[str], into: str, axis: int) -> None:
    columns[into] = np.stack(_together(columns, names), axis=axis)


def _slice(columns: Columns, name: str, start: int | None, stop: int | None, axis: int) -> None:
    column = np.moveaxis(_get(columns, name), axis, 0)[start:stop]
    columns[name] = np.moveaxis(column, 0, axis)


def _transpose(columns: Columns, name: str, axes: list[int]) -> None:
    columns[name] = np.transpose(_get(columns, name), axes)


def _reduce(columns: Columns, name: str, how: str, axis: int) -> None:
    column = _get(columns, name)
    # A sum of small numbers would be of a larger type; a mean of whole ones is a fraction and stays one.
    same = {"dtype": column.dtype} if how == "sum" and column.dtype.kind != "b" else {}
    columns[name] = REDUCE[how](column, axis=axis, **same)


def _cast(columns: Columns, name: str, dtype: str) -> None:
    columns[name] = _get(columns, name).astype(dtype)


def _rename(columns: Columns, name: str, into: str) -> None:
    columns[into] = _get(columns, name)
    del columns[name]


def _drop(columns: Columns, names: list[str]) -> None:
    for name in names:
        _get(columns, name)
        columns.pop(name, None)


def _keep(columns: Columns, names: list[str]) -> None:
    kept = {name: _get(columns, name) for name in names}
    columns.clear()
    columns.update(kept)


OPERATIONS: dict[str, Callable[..., None]] = {
    "concat": _concat,
    "stack": _stack,
    "slice": _slice,
    "transpose": _transpose,
    "reduce": _reduce,
    "cast": _cast,
    "rename": _rename,
    "drop": _drop,
    "keep": _keep,
}

_KINDS: dict[str, Callable[[Any], bool]] = {
    "name": lambda value: isinstance(value, str),
    "into": lambda value: isinstance(value, str) and bool(value),
    "names": lambda value: isinstance(value, list) and bool(value) and all(isinstance(name, str) for name in value),
    "axes": lambda value: isinstance(value, list) and all(type(axis) is int for axis in value),
    "axis": lambda value: type(value) is int,
    "start": lambda value: value is None or type(value) is int,
    "stop": lambda value: value is None or type(value) is int,
    "how": lambda value: value in REDUCE,
    "dtype": lambda value: isinstance(value, str) and value[1:2] in tuple("biuf"),
}
"""What each argument may be."""


def _check(operation: str, arguments: dict[str, Any]) -> None:
    if operation not in OPERATIONS:
        raise unknown("operation of a pipeline", operation, OPERATIONS)
    expected = list(inspect.signature(OPERATIONS[operation]).parameters)[1:]
    if sorted(arguments) != sorted(expected):
        raise WeftError(f"pipeline: {operation} has the arguments {sorted(arguments)}: expected {sorted(expected)}")
    for name, value in arguments.items():
        if not _KINDS[name](value):
            raise WeftError(f"pipeline: {operation} with {name}={value!r}, which is not possible")


def _get(columns: Columns, name: str) -> np.ndarray:
    if name not in columns:
        raise WeftError(f"pipeline: there is no column {name!r}; the columns are {', '.join(columns)}")
    return columns[name]


def _together(columns: Columns, names: list[str]) -> list[np.ndarray]:
    """Columns that become one, unless that were too large: a few lines could ask for any amount of memory."""
    parts = [_get(columns, name) for name in names]
    size = sum(part.nbytes for part in parts)
    if size > MOST:
        raise WeftError(f"pipeline: {len(parts)} columns of {size:,} bytes would be one: expected at most {MOST:,}")
    return parts


def _short(arguments: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in arguments.items())
