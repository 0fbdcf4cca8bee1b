"""Converts between nested structures of arrays and flat lists of named columns.

A step may nest dictionaries, lists, tuples, NamedTuples and dataclasses; `None` has no columns. A `Structure` is
created once, from a step or from shapes and dtypes of that form; it then flattens and unflattens steps. A column's
name is the path to it.

>>> structure = Structure({"obs": {"pixels": np.zeros((2, 2), np.uint8), "speed": np.float32(0)}, "rest": (1, None)})
>>> structure.names
('obs/pixels', 'obs/speed', 'rest/0')
>>> structure.unflatten(structure.flatten({"rest": (3, None), "obs": {"speed": 2, "pixels": 1}}))
{'obs': {'pixels': 1, 'speed': 2}, 'rest': (3, None)}
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from weft.errors import WeftError


class Column(NamedTuple):
    """The name of a column, and the shape and dtype of its value in one step."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype


class Structure:
    """The nested form of a step."""

    def __init__(self, signature: Any) -> None:
        self.columns: tuple[Column, ...] = tuple(_columns(signature, ""))
        self.names = tuple(column.name for column in self.columns)
        self._root = _branch(signature)
        if len(set(self.names)) < len(self.names) or not self.names:
            raise WeftError(
                f"the columns of the signature are {list(self.names)}: expected at least one, and names that differ"
            )

    def flatten(self, tree: Any) -> list[Any]:
        """The leaves of a step of this form, in the order of the columns."""
        leaves: list[Any] = []
        try:
            _flatten(self._root, tree, leaves)
        except (KeyError, AttributeError, TypeError, ValueError) as error:
            raise WeftError(
                f"expected a step with the columns {', '.join(self.names)}; given {_names(tree)}"
            ) from error
        return leaves

    def unflatten(self, leaves: Iterable[Any]) -> Any:
        """The step with these leaves; the inverse of `flatten`."""
        return _unflatten(self._root, iter(leaves))


def by_name(names: Sequence[str], leaves: Iterable[Any]) -> Any:
    """Nested dictionaries with these leaves: a step without its original container types.

    >>> by_name(["obs/pixels", "obs/speed"], [1, 2])
    {'obs': {'pixels': 1, 'speed': 2}}
    """
    tree: dict[str, Any] = {}
    for name, leaf in zip(names, leaves, strict=True):
        *path, last = name.split("/")
        inner = tree
        for part in path:
            inner = inner.setdefault(part, {}) if isinstance(inner, dict) else inner
        if not isinstance(inner, dict) or last in inner:
            raise WeftError(
                f"column {name!r} has the name of another column, or one is nested in the other: give them other names"
            )
        inner[last] = leaf
    return tree[""] if list(tree) == [""] else tree


class _Branch(NamedTuple):
    """An inner node of a structure; its leaves are None in `parts`."""

    parts: tuple["_Branch | None", ...]
    get: Callable[[Any], Sequence[Any]]
    make: Callable[[list[Any]], Any]


def _children(tree: Any) -> dict[str, Any] | None:
    """The children of a node by name, or None for a leaf."""
    if isinstance(tree, Mapping):
        return {str(name): part for name, part in tree.items()}
    if isinstance(tree, tuple) and (fields := getattr(tree, "_fields", None)):
        return dict(zip(fields, tree, strict=True))
    if isinstance(tree, list | tuple):
        return {str(number): part for number, part in enumerate(tree)}
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        return {field.name: getattr(tree, field.name) for field in dataclasses.fields(tree)}
    return {} if tree is None else None


def _branch(tree: Any) -> _Branch | None:
    children = _children(tree)
    if children is None:
        return None
    parts, names = tuple(map(_branch, children.values())), list(children)
    if isinstance(tree, Mapping):
        keys = list(tree)
        return _Branch(parts, _getter(keys), lambda leaves: dict(zip(keys, leaves, strict=True)))
    if tree is None:
        return _Branch((), lambda value: () if value is None else (value,), lambda leaves: None)
    if hasattr(tree, "_fields"):
        return _Branch(parts, lambda value: [getattr(value, name) for name in names], type(tree)._make)
    if isinstance(tree, list | tuple):
        return _Branch(parts, lambda value: value, type(tree))
    return _Branch(
        parts,
        lambda value: [getattr(value, name) for name in names],
        lambda leaves: type(tree)(**dict(zip(names, leaves, strict=True))),
    )


def _getter(keys: list[Any]) -> Callable[[Any], Sequence[Any]]:
    """A function that returns the values of these keys from a mapping with exactly these keys."""
    count, values = len(keys), itemgetter(*keys) if len(keys) > 1 else lambda value: tuple(value[key] for key in keys)

    def get(mapping: Any) -> Sequence[Any]:
        if len(mapping) != count:
            raise KeyError
        return values(mapping)

    return get


def _flatten(branch: _Branch | None, tree: Any, leaves: list[Any]) -> None:
    if branch is None:
        leaves.append(tree)
        return
    parts, values = branch.parts, branch.get(tree)
    if parts.count(None) == len(parts) == len(values):
        leaves += values
        return
    for part, value in zip(parts, values, strict=True):
        if part is None:
            leaves.append(value)
        else:
            _flatten(part, value, leaves)


def _unflatten(branch: _Branch | None, leaves: Any) -> Any:
    if branch is None:
        return next(leaves)
    return branch.make([next(leaves) if part is None else _unflatten(part, leaves) for part in branch.parts])


def _columns(tree: Any, path: str) -> Iterable[Column]:
    children = _children(tree)
    if children is None:
        leaf = tree if hasattr(tree, "shape") and hasattr(tree, "dtype") else np.asarray(tree)
        dtype = np.dtype(leaf.dtype)
        if dtype.hasobject:
            raise WeftError(f"column {path!r} is {tree!r}: expected an array of numbers or fixed-size text")
        yield Column(path, tuple(leaf.shape), dtype)
    else:
        for name, part in children.items():
            yield from _columns(part, f"{path}/{name}" if path else name)


def _names(tree: Any) -> str:
    children = _children(tree)
    if children is None:
        return f"one array, or {type(tree).__name__}"
    return ", ".join(column.name for column in _columns(tree, "")) or "none"
