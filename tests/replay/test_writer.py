"""Writers insert the same items as a loop over episodes, however the steps are appended."""

from dataclasses import dataclass

import hypothesis.strategies as st
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

from weft.errors import WeftError
from weft.replay import Queue, Store, Table
from weft.replay.writer import Writer

STEP = {"value": np.int64(0), "end": {"terminated": np.bool_(False), "truncated": np.bool_(False)}}


@dataclass(frozen=True)
class Form:
    length: int
    period: int
    burn_in: int
    cross: bool
    whole: bool
    mix: float


@st.composite
def forms(draw):
    length = draw(st.integers(1, 5))
    return Form(
        length,
        draw(st.integers(1, 6)),
        draw(st.integers(0, length - 1)),
        draw(st.booleans()),
        draw(st.booleans()),
        draw(st.sampled_from([0.0, 0.9, 1.0])),
    )


def steps(values, ended):
    """Steps whose episodes alternately terminate and are truncated."""
    values, ended = np.asarray(values, np.int64), np.asarray(ended, bool)
    return {"value": values, "end": {"terminated": ended & (values % 2 == 0), "truncated": ended & (values % 2 == 1)}}


def expected(values, ended, priority, form):
    """The items of one row as (values of their steps, priority), found by a loop over episodes."""
    episodes, current = [], []
    for index, end in enumerate(ended):
        current.append(index)
        if end and not form.cross:
            episodes.append((current, True))
            current = []
    episodes.append((current, False))
    items = []
    for episode, over in episodes:
        for start in range(0, len(episode), form.period):
            item = episode[start : start + form.length]
            short = len(item) < form.length
            if len(item) > form.burn_in and not (short and (form.whole or not over)):
                after = [priority[index] for index in item[form.burn_in :]]
                mixed = form.mix * max(after) + (1 - form.mix) * sum(after) / len(after)
                items.append(([values[index] for index in item], pytest.approx(mixed)))
    return items


@given(forms(), st.data(), st.integers(1, 3), st.integers(0, 25), st.booleans())
def test_items_match_a_loop_over_the_episodes(form, data, rows, count, flags):
    """Appending single steps, parts of the rows, or many steps at once gives the same items."""
    ended = np.array(
        data.draw(st.lists(st.lists(st.booleans(), min_size=rows, max_size=rows), min_size=count, max_size=count))
    )
    ended = ended.reshape(count, rows)
    values = np.arange(1, count * rows + 1).reshape(count, rows)
    priority = (values * 7 % 5).astype(float)
    options, chunk = dict(vars(form)), data.draw(st.integers(2, 5))
    tables = [
        Table(store=Store(STEP, capacity=40 * (rows + 1), rows=rows + 1), capacity=500, length=5) for _ in range(4)
    ]
    one, some, many, chunked = (
        Writer(table, first_row=1, chunk=chunk if table is tables[-1] else 1, **options) for table in tables
    )
    for t in range(count):
        given = {} if flags else {"ended": ended[t]}
        step = steps(values[t], ended[t] & flags)
        for writer in (one, chunked):
            writer.append(step, priority=priority[t], **given)
        for part in ([rows - 1], list(range(rows - 1))):
            piece = steps(values[t, part], ended[t, part] & flags)
            given = {} if flags else {"ended": ended[t, part]}
            some.append(piece, rows=part, priority=priority[t, part], **given)
    cut = data.draw(st.integers(0, count))
    for part in (slice(0, cut), slice(cut, count)):
        given = {} if flags else {"ended": ended[part]}
        if part.stop > part.start:
            many.append_many(steps(values[part], ended[part] & flags), priority=priority[part], **given)
    chunked.flush()
    for table in tables:
        found = table.items()
        order = np.lexsort((found.start, (found.start - 1) % (rows + 1)))
        store = table.store
        items = [
            (store.read(found.start[i] + np.arange(found.length[i]) * store.rows)["value"].tolist(), found.priority[i])
            for i in order
        ]
        assert items == [
            item
            for row in range(rows)
            for item in expected(values[:, row].tolist(), ended[:, row], priority[:, row], form)
        ]
    np.testing.assert_array_equal(tables[0].items().start, tables[2].items().start)


def test_appending_more_steps_than_a_row_holds_leaves_the_newest_items():
    store = Store({"value": np.int64(0)}, capacity=8, rows=2)
    table = Table(store=store, capacity=100, length=3)
    writer = Writer(table, length=3)
    writer.append_many({"value": np.arange(80).reshape(40, 2)})
    assert np.sort(store.read(table.items().start)["value"]).tolist() == [72, 73, 74, 75]
    assert table.info()["inserted"] == 2 * 38 and table.info()["lost"] == 2 * 36


@pytest.mark.parametrize("chunk", [1, 2, 3, 100])
def test_items_without_priorities_get_the_highest_so_far(chunk):
    table = Table(store=Store({"value": 0}, capacity=10), capacity=10, length=2)
    writer = Writer(table, length=2, chunk=chunk)
    for priority in ([3.0], [5.0], None, [1.0]):
        writer.append({"value": [1]}, priority=priority)
    writer.flush()
    assert table.items().priority.tolist() == [5.0, 5.0, 1.0]


@pytest.mark.parametrize("chunk", [1, 3])
@pytest.mark.parametrize(
    "given",
    [
        np.asfortranarray,
        lambda x: x[::-1].copy()[::-1],
        lambda x: x.astype(np.float64),
        lambda x: x.astype(">f4"),
        lambda x: x.tolist(),
        jnp.asarray,
    ],
    ids=["by columns", "backwards", "wider", "other bytes", "lists", "of JAX"],
)
def test_the_memory_layout_of_the_arrays_does_not_matter(given, chunk):
    store = Store({"x": np.zeros((2, 3), np.float32)}, capacity=20, rows=2)
    writer = Writer(Table(store=store, capacity=20), chunk=chunk)
    steps = np.random.default_rng(0).random((3, 2, 2, 3), np.float32)
    for step in steps:
        writer.append({"x": given(step)})
        step[:] = -1  # the writer keeps its own copy
    np.testing.assert_array_equal(store.column("x")[:6], np.random.default_rng(0).random((6, 2, 3), np.float32))


@pytest.mark.parametrize(
    ("x", "why"),
    [(np.zeros(3), "3 steps for 2 rows"), (np.zeros((2, 1)), "expected \\[n\\]"), (np.array(["a", "b"]), "is <U1")],
)
def test_a_step_of_the_wrong_form_is_rejected_before_it_is_buffered(x, why):
    writer = Writer(Table(store=Store({"x": np.float32(0)}, capacity=20, rows=2), capacity=20), chunk=10)
    with pytest.raises(WeftError, match=why):
        writer.append({"x": x})
    writer.append({"x": np.zeros(2, np.float32)})
    writer.flush()
    assert writer.tables[0].size == 2


def test_a_writer_fills_several_tables():
    store = Store({"value": 0}, capacity=10)
    tables = [Table(store=store, capacity=10, length=2, name=name) for name in "ab"]
    writer = Writer(tables, length=2)
    for value in range(4):
        writer.append({"value": [value]})
    assert [table.size for table in tables] == [3, 3]


def test_a_blocked_writer_explains_why():
    table = Table({"value": 0}, capacity=10, limiter=Queue(2), name="q")
    writer = Writer(table)
    for value in range(2):
        writer.append({"value": [value]})
    with pytest.raises(WeftError, match="table 'q': insert of 1 waited"):
        writer.append({"value": [3]}, timeout=0.0)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"length": 4}, "length <= 3 "),
        ({"length": 0}, "length 0"),
        ({"period": 0}, "period 0"),
        ({"length": 2, "burn_in": 2}, "burn_in 2"),
        ({"mix": 1.5}, "mix 1.5"),
        ({"chunk": 0}, "chunk 0"),
        ({"rows": 3}, "the store has 2"),
        ({"first_row": 2}, "the store has 2"),
    ],
)
def test_invalid_options_are_rejected(options, why):
    table = Table(store=Store({"value": 0}, capacity=20, rows=2), capacity=10, length=3)
    with pytest.raises(WeftError, match=why):
        Writer(table, **options)


def test_invalid_rows_and_stores_are_rejected():
    table, other = (Table(store=Store({"value": 0}, capacity=20, rows=2), capacity=10) for _ in range(2))
    with pytest.raises(WeftError, match="different stores"):
        Writer([table, other])
    writer = Writer(table)
    for rows in (None, [0, 1], [0, 0, 1], [0, 1, 2], [-1, 0, 1]):
        with pytest.raises(WeftError, match="expected"):
            writer.append({"value": [1, 2, 3]}, rows=rows)
    one = {"value": [1, 2]}
    for wrong in ({"ended": [True]}, {"priority": [1.0]}, {"priority": [1.0, -1.0]}, {"priority": [1.0, np.nan]}):
        with pytest.raises(WeftError, match="expected"):
            writer.append(one, **wrong)
        with pytest.raises(WeftError, match="expected"):
            writer.append_many({"value": [[1, 2]]}, **{name: [value] for name, value in wrong.items()})
    with pytest.raises(WeftError, match=r"expected \[T, B, ...\]"):
        writer.append_many(one)
    assert not table.store.counts.any()
