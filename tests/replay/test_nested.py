"""Structures flatten and unflatten steps of all container types, and reject other forms."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from weft.errors import WeftError
from weft.replay.nested import Structure, by_name


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass(frozen=True)
class Point:
    x: Any
    y: Any


NAMES = st.text("abc", min_size=1, max_size=2)
TREES = st.recursive(
    st.just(0) | st.none(),
    lambda inner: st.one_of(
        st.dictionaries(NAMES, inner, min_size=1, max_size=3),
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.builds(Pair, inner, inner),
        st.builds(Point, inner, inner),
    ),
    max_leaves=8,
)


def count(tree) -> int:
    if isinstance(tree, Point):
        return count(tree.x) + count(tree.y)
    parts = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list | tuple) else ()
    return sum(map(count, parts)) + (tree == 0 and not isinstance(tree, list | tuple | dict))


@given(TREES)
def test_unflatten_inverts_flatten(tree):
    if not count(tree):
        with pytest.raises(WeftError, match="expected at least one, and names"):
            Structure(tree)
        return
    structure = Structure(tree)
    leaves = list(range(count(tree)))
    nested = structure.unflatten(leaves)
    assert structure.flatten(nested) == leaves and len(structure.names) == len(leaves)
    assert Structure(nested).names == structure.names
    assert type(nested) is (type(tree) if tree is not None else type(None))


def test_column_names_are_paths_and_shapes_are_those_of_one_step():
    structure = Structure({"obs": Pair(np.zeros((2, 3), np.uint8), [np.float32(1)]), "done": True})
    assert [(name, shape, dtype.name) for name, shape, dtype in structure.columns] == [
        ("obs/left", (2, 3), "uint8"),
        ("obs/right/0", (), "float32"),
        ("done", (), "bool"),
    ]


def test_dictionaries_are_matched_by_name():
    assert Structure({"a": 0, "b": 0}).flatten({"b": 2, "a": 1}) == [1, 2]


@pytest.mark.parametrize(
    "given", [{"a": 0}, {"a": 0, "b": 0, "c": 0}, {"a": 0, "c": 0}, 3, None, {"a": 0, "b": [1]}, Pair(0, 0)]
)
def test_steps_of_another_form_are_rejected(given):
    with pytest.raises(WeftError, match="expected a step with the columns a, b/0, b/1; given"):
        Structure({"a": 0, "b": (0, 0)}).flatten(given)


def test_signatures_with_equal_column_names_are_rejected():
    for signature in ({"a": {"b": 0}, "a/b": 0}, {}, None):
        with pytest.raises(WeftError, match="names that differ"):
            Structure(signature)
    with pytest.raises(WeftError, match="array of numbers"):
        Structure({"a": "text", "b": object()})


def test_by_name_builds_nested_dictionaries():
    structure = Structure({"obs": Pair(0, [0])})
    assert by_name(structure.names, [1, 2]) == {"obs": {"left": 1, "right": {"0": 2}}}
    assert by_name(Structure(np.zeros(2)).names, [5]) == 5
    for names in (["a", "a/b"], ["a/b", "a"], ["a/b/c", "a/b"], ["a", "a/b/c"], ["a", "a"]):
        with pytest.raises(WeftError, match="has the name of another"):
            by_name(names, [1, 2])
