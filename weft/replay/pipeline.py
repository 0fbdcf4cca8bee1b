"""Pipelines: operations on every batch, declared as data, so that a server can apply them before it sends the batch.

>>> pipeline = Pipeline().concat(("obs", "goal"), into="x").reduce("reward", "sum", axis=1).drop("goal", "obs")
>>> batch = {"obs": np.ones((2, 3)), "goal": np.zeros((2, 1)), "reward": np.array([[1, 2], [3, 4]])}
>>> {name: column.tolist() for name, column in pipeline(batch).items()}
{'reward': [3, 7], 'x': [[1.0, 1.0, 1.0, 0.0], [1.0, 1.0, 1.0, 0.0]]}
>>> Pipeline.from_json(pipeline.to_json()) == pipeline
True

Columns have the names of the store: "obs/pixels" is inside "obs". The first axis is the batch axis.
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
"""The name of an operation, and its arguments: numbers, strings, and lists of them."""

MAX_BYTES = 1 << 32
"""The largest column in bytes that an operation may combine from others."""
REDUCTIONS: dict[str, Callable[..., Any]] = {
    "sum": np.sum,
    "mean": np.mean,
    "max": np.max,
    "min": np.min,
    "any": np.any,
    "all": np.all,
}


@dataclass(frozen=True)
class Pipeline:
    """A sequence of operations on the columns of a batch; every method returns a longer pipeline."""

    stages: tuple[Stage, ...] = ()

    def __call__(self, data: Any) -> Any:
        """Apply all operations to a nested batch; the result is nested dictionaries."""
        structure = Structure(data)
        columns = dict(zip(structure.names, structure.flatten(data), strict=True))
        for name, arguments in self.stages:
            try:
                OPERATIONS[name](columns, **arguments)
            except (ValueError, IndexError, TypeError) as error:
                raise WeftError(f"pipeline: {name} of {_format(arguments)} failed: {error}") from error
        return by_name(list(columns), columns.values())

    def concat(self, names: Sequence[str], into: str, axis: int = -1) -> "Pipeline":
        """Concatenate columns along an axis, into a new column."""
        return self._with("concat", names=list(names), into=into, axis=axis)

    def stack(self, names: Sequence[str], into: str, axis: int = 1) -> "Pipeline":
        """Stack columns along a new axis, into a new column."""
        return self._with("stack", names=list(names), into=into, axis=axis)

    def slice(self, name: str, start: int | None, stop: int | None, axis: int = 1) -> "Pipeline":
        """Slice a column along an axis."""
        return self._with("slice", name=name, start=start, stop=stop, axis=axis)

    def transpose(self, name: str, *axes: int) -> "Pipeline":
        """Reorder the axes of a column."""
        return self._with("transpose", name=name, axes=list(axes))

    def reduce(self, name: str, how: str, axis: int = 1) -> "Pipeline":
        """Reduce a column along an axis: "sum", "mean", "max", "min", "any" or "all"."""
        return self._with("reduce", name=name, how=how, axis=axis)

    def cast(self, name: str, dtype: Any) -> "Pipeline":
        """Cast a column to another numeric dtype."""
        return self._with("cast", name=name, dtype=np.dtype(dtype).str)

    def rename(self, name: str, into: str) -> "Pipeline":
        """Rename a column."""
        return self._with("rename", name=name, into=into)

    def drop(self, *names: str) -> "Pipeline":
        """Drop columns."""
        return self._with("drop", names=list(names))

    def keep(self, *names: str) -> "Pipeline":
        """Drop all other columns."""
        return self._with("keep", names=list(names))

    def to_json(self) -> str:
        return json.dumps(self.stages)

    @classmethod
    def from_json(cls, text: str) -> "Pipeline":
        """Parse untrusted JSON; raises unless it is a valid pipeline."""
        try:
            stages = [(str(name), dict(arguments)) for name, arguments in json.loads(text)]
        except (ValueError, TypeError) as error:
            raise WeftError(f"pipeline: expected JSON from to_json; given {text[:60]!r}") from error
        pipeline = cls()
        for name, arguments in stages:
            pipeline = pipeline._with(name, **arguments)
        return pipeline

    def _with(self, operation: str, **arguments: Any) -> "Pipeline":
        _check(operation, arguments)
        return Pipeline((*self.stages, (operation, arguments)))


def _concat(columns: Columns, names: list[str], into: str, axis: int) -> None:
    columns[into] = np.concatenate(_get_all(columns, names), axis=axis)


def _stack(columns: Columns, names: list[str], into: str, axis: int) -> None:
    columns[into] = np.stack(_get_all(columns, names), axis=axis)


def _slice(columns: Columns, name: str, start: int | None, stop: int | None, axis: int) -> None:
    column = np.moveaxis(_get(columns, name), axis, 0)[start:stop]
    columns[name] = np.moveaxis(column, 0, axis)


def _transpose(columns: Columns, name: str, axes: list[int]) -> None:
    columns[name] = np.transpose(_get(columns, name), axes)


def _reduce(columns: Columns, name: str, how: str, axis: int) -> None:
    column = _get(columns, name)
    # NumPy sums small integers in a larger type; keep the column's. A mean of integers stays a float.
    dtype = {"dtype": column.dtype} if how == "sum" and column.dtype.kind != "b" else {}
    columns[name] = REDUCTIONS[how](column, axis=axis, **dtype)


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
    selected = {name: _get(columns, name) for name in names}
    columns.clear()
    columns.update(selected)


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

_VALID: dict[str, Callable[[Any], bool]] = {
    "name": lambda value: isinstance(value, str),
    "into": lambda value: isinstance(value, str) and bool(value),
    "names": lambda value: isinstance(value, list) and bool(value) and all(isinstance(name, str) for name in value),
    "axes": lambda value: isinstance(value, list) and all(type(axis) is int for axis in value),
    "axis": lambda value: type(value) is int,
    "start": lambda value: value is None or type(value) is int,
    "stop": lambda value: value is None or type(value) is int,
    "how": lambda value: value in REDUCTIONS,
    "dtype": lambda value: isinstance(value, str) and value[1:2] in tuple("biuf"),
}
"""Whether a value is valid for an argument, by the argument's name."""


def _check(operation: str, arguments: dict[str, Any]) -> None:
    if operation not in OPERATIONS:
        raise unknown("pipeline operation", operation, OPERATIONS)
    expected = list(inspect.signature(OPERATIONS[operation]).parameters)[1:]
    if sorted(arguments) != sorted(expected):
        raise WeftError(f"pipeline: {operation} got the arguments {sorted(arguments)}: expected {sorted(expected)}")
    for name, value in arguments.items():
        if not _VALID[name](value):
            raise WeftError(f"pipeline: {operation} got an invalid argument {name}={value!r}")


def _get(columns: Columns, name: str) -> np.ndarray:
    if name not in columns:
        raise WeftError(f"pipeline: there is no column {name!r}; the columns are {', '.join(columns)}")
    return columns[name]


def _get_all(columns: Columns, names: list[str]) -> list[np.ndarray]:
    """Columns to combine; raises if the result would be too large, because a short request could exhaust memory."""
    parts = [_get(columns, name) for name in names]
    size = sum(part.nbytes for part in parts)
    if size > MAX_BYTES:
        raise WeftError(
            f"pipeline: {len(parts)} columns of {size:,} bytes in total: expected at most {MAX_BYTES:,} to combine"
        )
    return parts


def _format(arguments: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in arguments.items())
