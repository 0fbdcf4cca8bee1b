"""Patterns, compared with a loop over the steps of each item; frame stacks do not cross episodes."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from weft.errors import WeftError
from weft.replay import Store, Table
from weft.replay.patterns import All, First, FrameStack, Last, Pick, Steps, Whole
from weft.replay.writer import Writer

STEP = {"obs": {"frame": np.zeros(2, np.int32), "speed": np.float32(0)}, "start": False, "ended": False, "reward": 0.0}


def filled(ended, rows, capacity=60, **options):
    """A table of items of up to four steps; episodes end where `ended`, [T, rows], is true."""
    ended = np.asarray(ended).reshape(-1, rows)
    store = Store(STEP, capacity=capacity, rows=rows)
    table = Table(store=store, capacity=500, length=4, **options)
    writer = Writer(table, length=4, period=1)
    start = np.ones(rows, bool)
    for t, end in enumerate(ended):
        value = 100 * np.arange(rows) + t + 1
        obs = {"frame": np.stack([value, -value], axis=1), "speed": value / 2}
        writer.append({"obs": obs, "start": start, "ended": end, "reward": value * 1.0}, ended=end)
        start = end
    return table


def values_of(table, info):
    """The values of the steps of sampled items, item by item."""
    items = table.items(np.unique(info.key))
    found = {}
    for key, start, length, *_ in zip(*items, strict=True):
        positions = start + np.arange(length) * table.store.rows
        found[key] = table.store.read(positions)["reward"].tolist()
    return [found[key] for key in info.key]


def padded(values, count):
    return (values + [0] * count)[:count]


PARTS = {
    "first": First("reward"),
    "last": Last("reward"),
    "all": All("reward"),
    "middle": Steps(1, 3, "reward"),
    "rest": Steps(2, None, "reward"),
    "reward": Last(),
}
ENDED = st.lists(st.lists(st.booleans(), min_size=2, max_size=2), min_size=4, max_size=40)


@given(ENDED, st.sampled_from([16, 60]))
def test_parts_match_a_loop_over_the_items(ended, capacity):
    table = filled(ended, 2, capacity, pattern=Pick(PARTS))
    if not table.size:
        return
    data, info = table.sample(20)
    values = values_of(table, info)
    assert data["first"].tolist() == [item[0] for item in values]
    assert data["last"].tolist() == data["reward"].tolist() == [item[-1] for item in values]
    assert data["all"].tolist() == [padded(item, 4) for item in values]
    assert data["middle"].tolist() == [padded(item[1:3], 2) for item in values]
    assert data["rest"].tolist() == [padded(item[2:], 2) for item in values]


def stack(row, index, count, oldest):
    """The values of the frames of a stack, found step by step; `row` holds (value, starts an episode)."""
    frames = [row[index][0]]
    while len(frames) < count:
        if row[index][1] or index == oldest:
            frames.insert(0, frames[0])
        else:
            index -= 1
            frames.insert(0, row[index][0])
    return frames


@given(ENDED, st.integers(1, 5), st.booleans(), st.sampled_from([16, 60]))
def test_a_frame_stack_repeats_the_first_frame_at_episode_starts(ended, count, by_start, capacity):
    how = {"start": "start"} if by_start else {"ended": "ended"}
    parts = {f"{part.__name__}": FrameStack(count, of=part(), column="obs", **how) for part in (First, Last, All)}
    table = filled(ended, 2, capacity, pattern=Pick(parts))
    if not table.size:
        return
    rows = []
    for row in range(2):
        ends = [True, *(end[row] for end in ended)]
        rows.append([(100 * row + t + 1, ends[t]) for t in range(len(ended))])
    oldest = max(0, len(ended) - capacity // 2)
    data, info = table.sample(10)
    for index, item in enumerate(values_of(table, info)):
        stacks = [stack(rows[int(value) // 100], int(value) % 100 - 1, count, oldest) for value in item]
        whole = stacks + [[0] * count] * (4 - len(item))
        assert data["All"]["frame"][index, ..., 0].tolist() == whole
        assert data["First"]["frame"][index, :, 0].tolist() == stacks[0]
        assert data["Last"]["speed"][index].tolist() == [value / 2 for value in stacks[-1]]


def test_whole_items_are_nested_like_the_steps():
    table = filled([[False], [True]], 1, pattern=Whole())
    data, info = table.sample(3)
    assert data["obs"]["frame"].shape == (3, 4, 2) and data["obs"]["speed"].dtype == np.float32
    assert set(info.length.tolist()) <= {1, 2}


def test_patterns_that_cannot_be_read_are_rejected():
    with pytest.raises(WeftError, match="no column 'obs/other'; the columns are obs/frame"):
        filled([[False]] * 4, 1, pattern=Pick({"obs/other": First()})).sample(1)
    for options in ({"count": 0, "start": "start"}, {"count": 2}, {"count": 2, "start": "s", "ended": "e"}):
        with pytest.raises(WeftError, match="expected at least one frame"):
            FrameStack(**options)
