"""Ring buffers hold the newest steps of every row, and report overwritten steps."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from weft.errors import WeftError
from weft.replay import Store
from weft.replay.store import as_slice, count_earlier_equal

BATCHES = st.lists(st.lists(st.integers(0, 2), max_size=4), max_size=12)


@given(BATCHES, st.integers(4, 6))
def test_a_row_keeps_its_newest_steps(batches, per_row):
    store = Store({"value": np.int64(0), "twice": np.zeros(2, np.int32)}, capacity=3 * per_row + 2, rows=3)
    written: list[list[tuple[int, int]]] = [[], [], []]
    number = 0
    for rows in batches:
        values = np.arange(number, number + len(rows))
        number += len(rows)
        steps = {"value": values, "twice": np.stack([values, values], axis=1)}
        positions = store.append(steps, np.array(rows, np.int32))
        for position, row, value in zip(positions.tolist(), rows, values.tolist(), strict=True):
            written[row].append((position, value))
    for row, steps in enumerate(written):
        positions = np.array([position for position, _ in steps], np.int64)
        assert np.diff(positions).tolist() == [3] * (len(steps) - 1) if steps else True
        assert store.holds(positions).tolist() == [index >= len(steps) - per_row for index in range(len(steps))]
        kept = steps[-per_row:]
        read = store.read([position for position, _ in kept])
        assert read["value"].tolist() == [value for _, value in kept]
        assert read["twice"].tolist() == [[value, value] for _, value in kept]
        assert not store.holds([len(steps) * 3 + row, row - 3]).any()


@given(st.lists(st.integers(0, 5), max_size=12))
def test_equal_values_are_counted_and_consecutive_ones_become_slices(values):
    array = np.array(values, np.int64)
    assert count_earlier_equal(array).tolist() == [values[:i].count(value) for i, value in enumerate(values)]
    found = as_slice(array)
    follow = bool(values) and values == list(range(values[0], values[0] + len(values)))
    assert isinstance(found, slice) == follow
    assert np.arange(20)[found].tolist() == values


def test_columns_can_be_read_alone_and_positions_have_any_shape():
    store = Store({"a": {"b": np.float32(0)}, "c": np.zeros(3, np.uint8)}, capacity=5)
    positions = store.append({"a": {"b": [1, 2, 3, 4]}, "c": np.ones((4, 3), np.uint8)}).reshape(2, 2)
    assert store.read(positions, ["a/b"])["a/b"].tolist() == [[1, 2], [3, 4]]
    assert store.read(positions)["c"].shape == (2, 2, 3)
    with pytest.raises(WeftError, match="no column 'd'; the columns are a/b, c"):
        store.read(positions, ["d"])


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([0, 2], "expected 0 to 1"),
        ([-1, 0], "expected 0 to 1"),
        ([0], "each of the 2"),
        ([0.0, 1.0], "float64"),
    ],
)
def test_rows_that_do_not_exist_are_rejected(rows, why):
    store = Store({"a": 0}, capacity=4, rows=2)
    with pytest.raises(WeftError, match=why):
        store.append({"a": [1, 2]}, rows)
    assert not store.counts.any()


def test_appending_more_steps_than_a_row_holds_is_rejected():
    store = Store({"a": 0}, capacity=4, rows=2)
    with pytest.raises(WeftError, match="append of 3 steps to a row that holds 2"):
        store.append({"a": [1, 2, 3]}, [1, 1, 1])
    with pytest.raises(WeftError, match="at least one step for every row"):
        Store({"a": 0}, capacity=1, rows=2)


def test_a_restored_store_equals_the_saved_one():
    store, other = (Store({"a": 0}, capacity=6, rows=2) for _ in range(2))
    for _ in range(2):
        store.append({"a": [1, 2, 3]}, [0, 0, 1])
    other.restore(store.state())
    assert other.append({"a": [9]}, [1]).tolist() == store.append({"a": [9]}, [1]).tolist() == [5]
    assert other.columns[0].tolist() == store.columns[0].tolist()
