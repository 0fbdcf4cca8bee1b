"""Restored tables continue with the exact state that was saved."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.replay.server.serving import CALLS, SIGNATURE, call_all, identical, steps, table
from weft.errors import WeftError
from weft.replay.checkpoint import restore, save
from weft.replay.limiter import SamplesPerInsert
from weft.replay.selectors import Fifo, Lifo, MaxHeap, MinHeap, Prioritised, Selector, Uniform
from weft.replay.store import Store
from weft.replay.table import Table

SELECTORS = [Uniform, Fifo, Lifo, MinHeap, MaxHeap, Prioritised]


@given(
    before=CALLS,
    after=CALLS,
    sampler=st.sampled_from(SELECTORS),
    remover=st.sampled_from(SELECTORS),
    times=st.sampled_from([0, 2]),
)
@settings(max_examples=60)
def test_a_restored_table_continues_like_the_original(tmp_path_factory, before, after, sampler, remover, times):
    path = tmp_path_factory.mktemp("saved") / "one"
    options = {"capacity": 12, "max_times_sampled": times, "seed": 8}
    if times:
        before, after = ([call for call in calls if call[0] != "sample"] for calls in (before, after))
    here = table(sampler=sampler(), remover=remover(), **options)
    call_all(here, before)
    save(path, [here])
    there = restore(path)["a"]
    again = restore(path, [table(sampler=sampler(), remover=remover(), **options)])["a"]
    expected = call_all(here, after)
    assert all(map(identical, expected, call_all(there, after))) and all(
        map(identical, expected, call_all(again, after))
    )
    assert here.info() == there.info() == again.info()


def test_tables_that_share_a_store_are_saved_consistently(tmp_path):
    store = Store(SIGNATURE, capacity=40, rows=2)
    first = Table(store=store, capacity=20, length=3, name="first", sampler=Prioritised(0.5))
    second = Table(store=store, capacity=20, name="second", limiter=SamplesPerInsert(2.0, 3, 40.0))
    alone = table()
    positions = store.append(steps(30), rows=np.arange(30) % 2)
    first.insert_items(positions[:10], 3, np.arange(10.0))
    second.insert_items(positions[:20], 1)
    alone.insert(steps(5))
    save(tmp_path / "all", [first, second, alone])
    found = restore(tmp_path / "all")
    assert list(found) == ["first", "second", "a"]
    assert found["first"].store is found["second"].store is not found["a"].store
    assert found["second"].limiter == second.limiter
    for _ in range(3):
        assert identical(found["first"].sample(9), first.sample(9)) and identical(
            found["second"].sample(5), second.sample(5)
        )
    more = steps(16, 100)
    rows = np.arange(16) % 2
    assert (found["first"].store.append(more, rows) == store.append(more, rows)).all()
    assert identical(found["first"].items(), first.items()) and first.info()["lost"] > 0


def test_a_new_checkpoint_replaces_the_previous_one(tmp_path):
    here = table()
    for count in (1, 2):
        here.insert(steps(3))
        save(tmp_path / "one", [here])
        assert restore(tmp_path / "one")["a"].size == 3 * count
    assert [path.name for path in tmp_path.iterdir()] == ["one"]


def test_checkpoints_that_cannot_be_restored_raise_an_error(tmp_path):
    class Mine(Uniform):
        pass

    save(tmp_path / "mine", [table(sampler=Mine())])
    with pytest.raises(WeftError, match="selector 'Mine' that is not registered: give restore a table"):
        restore(tmp_path / "mine")
    assert isinstance(restore(tmp_path / "mine", [table(sampler=Mine())])["a"].sampler, Selector)
    with pytest.raises(WeftError, match="made with the same arguments"):
        restore(tmp_path / "mine", [Table({"x": np.zeros(2)}, capacity=5, name="a")])
    with pytest.raises(WeftError, match="unknown table 'a'"):
        restore(tmp_path / "mine", [])
    with pytest.raises(WeftError, match="no complete checkpoint"):
        restore(tmp_path / "nothing")
    (tmp_path / "mine" / "0.npy").write_bytes(b"")
    with pytest.raises(WeftError, match="no complete checkpoint"):
        restore(tmp_path / "mine")
    with pytest.raises(WeftError, match="cannot be written"):
        save("/proc/nowhere", [table()])
