"""Every operation of a table compared with a model; waiting threads; error messages."""

import re
import threading
from concurrent.futures import Future, ThreadPoolExecutor

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from tests.replay.table_model import RANDOM, SELECTORS, TableModel
from weft.errors import WeftError
from weft.replay import Fifo, Lifo, MinHeap, MinimumSize, Prioritised, Queue, SamplesPerInsert, Stack, Store, Table

STEP = {"value": np.int64(0), "pair": (np.zeros(2, np.float32), None)}
PRIORITY = st.sampled_from([0.0, 0.25, 1.0, 1.5, 3.0])
LOOSE = st.builds(MinimumSize, st.integers(1, 3))
LIMITERS = st.one_of(
    LOOSE,
    LOOSE,
    LOOSE,
    st.builds(SamplesPerInsert, st.sampled_from([0.5, 2.0]), st.integers(1, 3), st.sampled_from([2.0, 5.0])),
    st.builds(Queue, st.integers(1, 6)),
)


def steps(values):
    values = np.asarray(values, np.int64)
    return {"value": values, "pair": (np.stack([values, -values], axis=-1).astype(np.float32), None)}


class Machine(RuleBasedStateMachine):
    """Rules for tables that own their store and for tables over a shared store."""

    length = 1

    def make(self, data, **options):
        kinds = st.sampled_from(sorted(SELECTORS))
        sampler, remover, limiter = data.draw(kinds), data.draw(kinds), data.draw(LIMITERS)
        capacity, times = data.draw(st.integers(3, 5)), data.draw(st.sampled_from([0, 0, 1, 2, 3]))
        self.table = Table(
            capacity=capacity,
            sampler=SELECTORS[sampler](),
            remover=SELECTORS[remover](),
            limiter=limiter,
            max_times_sampled=times,
            length=self.length,
            **options,
        )
        self.model = TableModel(capacity, sampler, remover, limiter, times)
        self.values: dict[int, int] = {}
        """The value of the step at each position, or in each slot."""
        self.keys = [0, 2**64 - 1, 2**32]
        """All keys ever given, and some that never were."""
        self.count = 0

    def fresh(self, n):
        self.count += n
        return list(range(self.count - n, self.count))

    def some_keys(self, data, most):
        live = sorted(self.model.items)
        return data.draw(
            st.lists(st.sampled_from(live if live and data.draw(st.booleans()) else self.keys), max_size=most)
        )

    def entered(self, keys, starts, lengths, priorities):
        keys = keys.tolist()
        self.model.make_room(len(keys), set(self.table.items().key.tolist()))
        self.model.enter(keys, starts, lengths, priorities)
        self.keys += keys

    @rule(data=st.data(), n=st.sampled_from([1, 2, 3, 5, 12]))
    def sample(self, data, n):
        seed = data.draw(st.none() | st.integers(0, 100))
        if not self.model.may_sample(n):
            with pytest.raises(WeftError, match=f"sample of {n} (waited|is never)"):
                self.table.sample(n, timeout=0.0, seed=seed)
            return
        before, size = dict(self.model.items), len(self.model.items)
        sample = self.table.sample(n, timeout=0.0, seed=seed)
        exact = not self.model.max_times or n == 1 or self.model.sampler not in RANDOM
        for index, key in enumerate(sample.info.key.tolist()):
            probability = self.model.draw(key)
            assert 0 < sample.info.probability[index] <= 1
            if exact:
                assert sample.info.probability[index] == pytest.approx(probability, rel=1e-12)
            self.check_drawn(sample, index, before[key])
        assert sample.info.table_size == size

    def check_drawn(self, sample, index, item):
        info, data = sample.info, sample.data
        assert (info.priority[index], info.times_sampled[index], info.length[index]) == (
            item.priority,
            item.times + list(info.key).count(info.key[index]) - list(info.key[: index + 1]).count(info.key[index]),
            item.length,
        )
        expected = [self.values[item.start + i * self.table.store.rows] for i in range(item.length)]
        expected = expected[0] if self.length == 1 else expected + [0] * (self.length - item.length)
        np.testing.assert_array_equal(data["value"][index], expected)
        np.testing.assert_array_equal(data["pair"][0][index, ..., 1], -np.array(expected, np.float32))

    @rule(data=st.data())
    def update(self, data):
        keys = self.some_keys(data, 6)
        priorities = data.draw(st.lists(PRIORITY, min_size=len(keys), max_size=len(keys)))
        assert self.table.update(np.array(keys, np.uint64), priorities) == self.model.update(keys, priorities)

    @rule(data=st.data())
    def delete(self, data):
        keys = self.some_keys(data, 3)
        assert self.table.delete(np.array(keys, np.uint64)) == self.model.delete(keys)

    @rule(limiter=LIMITERS, seldom=st.integers(0, 9))
    def change_limiter_or_reset(self, limiter, seldom):
        if seldom < 2:
            self.table.limiter = self.model.limiter = limiter
        elif seldom == 9:
            self.table.reset()
            self.model.reset()

    @invariant()
    def the_same_items(self):
        items = self.table.items()
        found = {
            key: (start, length, priority, times)
            for key, start, length, priority, times in zip(*(array.tolist() for array in items), strict=True)
        }
        model = self.model
        assert found == {key: (item.start, item.length, item.priority, item.times) for key, item in model.items.items()}
        assert self.table.size == len(found) and self.table.max_priority == model.max_priority
        assert (self.table.inserted, self.table.sampled) == (model.inserted, model.sampled)

    def teardown(self):
        if self.count:
            info = self.table.info()
            gone = info["removed"] + info["deleted"] + info["lost"]
            assert info["inserted"] >= info["size"] + gone
            self.table.close()


class OwnStore(Machine):
    """A table that owns its store: each step is an item, and stays as long as the item."""

    @initialize(data=st.data())
    def start(self, data):
        self.make(data, signature=STEP)

    @rule(data=st.data(), n=st.sampled_from([1, 1, 2, 3, 6]))
    def insert(self, data, n):
        priorities = data.draw(st.none() | st.lists(PRIORITY, min_size=n, max_size=n))
        if n > self.model.capacity or not self.model.may_insert(n):
            with pytest.raises(WeftError, match=f"insert of {n} (waited|is never)"):
                self.table.insert(steps(range(n)), priorities, timeout=0.0)
            return
        values = self.fresh(n)
        keys = self.table.insert(steps(values), priorities, timeout=0.0)
        slots = (keys & np.uint64(2**32 - 1)).astype(int).tolist()
        self.values.update(zip(slots, values, strict=True))
        self.entered(keys, slots, [1] * n, priorities)


class DeviceTable(Machine):
    """Items of several steps over a store that overwrites old steps."""

    length = 3

    @initialize(data=st.data(), rows=st.integers(1, 3), per_row=st.integers(1, 5))
    def start(self, data, rows, per_row):
        self.store = Store(STEP, capacity=rows * per_row, rows=rows)
        self.counts = [0] * rows
        self.make(data, store=self.store)

    @rule(data=st.data())
    def append(self, data):
        size = self.store.steps_per_row
        rows = data.draw(st.lists(st.integers(0, self.store.rows - 1), max_size=4))
        values = self.fresh(len(rows))
        if any(rows.count(row) > size for row in rows):
            with pytest.raises(WeftError, match="append less at once"):
                self.store.append(steps(values), np.array(rows, int))
            return
        positions = self.store.append(steps(values), np.array(rows, int)).tolist()
        for position, row, value in zip(positions, rows, values, strict=True):
            assert position == self.counts[row] * self.store.rows + row
            self.values[position] = value
            self.counts[row] += 1
        self.model.items = {key: item for key, item in self.model.items.items() if self.held(item.start)}

    def held(self, position):
        number, row = divmod(position, self.store.rows)
        return max(0, self.counts[row] - self.store.steps_per_row) <= number < self.counts[row]

    @rule(data=st.data(), n=st.integers(1, 4))
    def insert_items(self, data, n):
        places = range(max(self.counts) * self.store.rows + 1)
        if data.draw(st.integers(0, 9)):
            places = [place for place in places if self.held(place)] or places
        starts = data.draw(st.lists(st.sampled_from(places), min_size=n, max_size=n))
        lengths = data.draw(st.lists(st.sampled_from([1, 1, 2, 3]), min_size=n, max_size=n))
        priorities = data.draw(st.none() | st.lists(PRIORITY, min_size=n, max_size=n))
        ends = [start + (length - 1) * self.store.rows for start, length in zip(starts, lengths, strict=True)]
        held = self.store.holds(np.array(starts + ends)).tolist()
        assert held == [self.held(position) for position in starts + ends]
        if n > self.model.capacity or not self.model.may_insert(n) or not all(held):
            with pytest.raises(WeftError, match=f"insert of {n} (waited|is never)|not in the store"):
                self.table.insert_items(starts, lengths, priorities, timeout=0.0)
            return
        self.entered(self.table.insert_items(starts, lengths, priorities, timeout=0.0), starts, lengths, priorities)


@pytest.mark.parametrize("machine", [OwnStore, DeviceTable])
def test_every_operation_matches_the_model(machine):
    run_state_machine_as_test(machine, settings=settings(max_examples=100, stateful_step_count=40))


def filled(n, **options):
    table = Table({"value": np.int64(0)}, **{"capacity": 100, "name": "a", **options})
    return table, table.insert({"value": np.arange(n)}) if n else None


def in_thread(call) -> Future:
    """A call that is running when this function returns."""
    running = threading.Event()

    def run():
        running.set()
        return call()

    pool = ThreadPoolExecutor(1)
    future = pool.submit(run)
    pool.shutdown(wait=False)
    running.wait()
    return future


def waits(future: Future) -> bool:
    with pytest.raises(TimeoutError):
        future.result(0.05)
    return True


def test_samples_wait_for_inserts_and_inserts_for_samples():
    table, _ = filled(0, limiter=Queue(2), max_times_sampled=1, sampler=Fifo())
    sample = in_thread(lambda: table.sample(2))
    assert waits(sample)
    table.insert({"value": [7]})
    assert waits(sample)
    table.insert({"value": [8]})
    assert sample.result(10).data["value"].tolist() == [7, 8]
    table.insert({"value": [1, 2]})
    insert = in_thread(lambda: table.insert({"value": [3]}))
    assert waits(insert)
    assert table.sample(1).data["value"].tolist() == [1]
    assert len(insert.result(10)) == 1 and table.size == 2


def test_a_new_limiter_applies_to_waiting_calls():
    table, _ = filled(5, limiter=MinimumSize(50))
    sample = in_thread(lambda: table.sample(3))
    assert waits(sample)
    table.limiter = MinimumSize(5)
    assert sample.result(10).info.table_size == 5
    table.limiter = MinimumSize(50)
    never = in_thread(lambda: table.sample(3))
    assert waits(never)
    table.limiter = Queue(2)
    with pytest.raises(WeftError, match="allows at most 2 samples at once"):
        never.result(10)


def test_a_delete_wakes_a_waiting_insert():
    table, keys = filled(3, limiter=SamplesPerInsert(1.0, 3, 1.0))
    table.insert({"value": [3]})
    insert = in_thread(lambda: table.insert({"value": [4]}))
    assert waits(insert)
    table.delete(keys)
    assert len(insert.result(10)) == 1


def test_closing_a_table_ends_waiting_calls():
    table, _ = filled(0)
    sample = in_thread(lambda: table.sample(1))
    assert waits(sample)
    table.close()
    with pytest.raises(WeftError, match="table 'a' is closed: sample of 1"):
        sample.result(10)
    with pytest.raises(WeftError, match="closed"):
        table.insert({"value": [1]})


@pytest.mark.parametrize(
    ("limiter", "call", "why"),
    [
        (MinimumSize(20), lambda table: table.sample(32, 0.01), "it holds 10 items and the limiter requires 20"),
        (Queue(10), lambda table: table.insert({"value": [1]}, timeout=0.01), "10 inserted and 0 sampled; one more"),
        (Queue(10), lambda table: (table.sample(8), table.sample(5, 0.01)), "10 inserted and 8 sampled; 5 more"),
    ],
)
def test_a_timeout_names_the_reason(limiter, call, why):
    table, _ = filled(10, limiter=limiter)
    with pytest.raises(WeftError, match=rf"table 'a': .* waited 0\.01 s: {why}"):
        call(table)


def test_calls_that_can_never_be_allowed_fail_at_once():
    table, _ = filled(0, limiter=SamplesPerInsert(2.0, 10, 4.0), max_times_sampled=2)
    for call, why in {
        lambda: table.insert({"value": range(101)}): "holds at most 100 items",
        lambda: table.insert({"value": range(13)}): "allows at most 12 inserts at once",
        lambda: table.sample(9): "allows at most 8 samples",
        lambda: table.sample(201): "each for 2 samples",
        lambda: table.sample(0): "at least one item",
    }.items():
        with pytest.raises(WeftError, match=f"is never possible: .*{why}"):
            call()
    with pytest.raises(WeftError, match="requires 101 items and it holds at most 100"):
        table.limiter = MinimumSize(101)


def test_inserting_nothing_never_waits_and_has_no_effect():
    nothing = {"value": np.zeros(0, int)}
    table, _ = filled(10, limiter=Queue(10))
    assert table.insert(nothing).shape == table.insert(nothing, []).shape == (0,)
    shared = Table(store=Store({"value": 0}, capacity=5), capacity=5)
    assert shared.insert(nothing).shape == shared.insert_items([], 1).shape == (0,)
    assert (table.size, table.inserted, shared.size) == (10, 10, 0)


@pytest.mark.parametrize("priority", [-1.0, np.nan, np.inf, [1.0, 2.0]])
def test_invalid_priorities_are_rejected_without_effect(priority):
    table, keys = filled(3)
    for call in (lambda: table.update(keys, priority), lambda: table.insert({"value": [1, 2, 3]}, priority)):
        with pytest.raises(WeftError, match="priorities are"):
            call()
    assert table.size == 3 and table.items().priority.tolist() == [1.0] * 3


def test_steps_of_the_wrong_form_are_rejected_without_effect():
    table, _ = filled(3)
    for wrong in ({"value": [0.5]}, {"value": [[1]]}, {"other": [1]}, {"value": 1}, {"value": [1], "more": [1]}, [1]):
        with pytest.raises(WeftError):
            table.insert(wrong)
    assert table.size == table.inserted == 3


def test_a_selector_belongs_to_one_table():
    sampler = Prioritised()
    filled(1, sampler=sampler)
    with pytest.raises(WeftError, match="this Prioritised belongs to another table"):
        filled(1, sampler=sampler)


def test_a_store_is_filled_by_insert_or_by_append_but_not_both():
    table, _ = filled(1)
    with pytest.raises(WeftError, match="filled by its table's insert"):
        table.store.append({"value": [1]})
    other, _ = filled(0)
    other.insert_items(other.store.append({"value": [1, 2]}), 1)
    with pytest.raises(WeftError, match="filled by append"):
        other.insert({"value": range(99)})
    assert other.size == 2 and other.sample(4).data["value"].shape == (4,)


def test_tables_share_a_store():
    store = Store({"value": np.int64(0)}, capacity=4)
    one, pairs = Table(store=store, capacity=10), Table(store=store, capacity=10, length=2, sampler=Lifo())
    one.insert({"value": [0, 1, 2, 3]})
    pairs.insert_items([0, 2, 2], [2, 2, 1])
    assert pairs.sample(1).data["value"].tolist() == [[2, 0]]
    store.append({"value": [4]})
    assert one.items().start.tolist() == [1, 2, 3] and pairs.items().start.tolist() == [2, 2]
    assert one.info()["lost"] == pairs.info()["lost"] == 1
    pairs.close()
    store.append({"value": [5, 6]})
    assert one.size == 1 and pairs.size == 2


@pytest.mark.parametrize("max_times", [1, 2])
def test_stacks_and_queues_sample_each_item_max_times_sampled_times(max_times):
    for sampler, limiter, values in ((Fifo(), Queue(20), range(5)), (Lifo(), Stack(20), range(4, -1, -1))):
        table, _ = filled(5, sampler=sampler, limiter=limiter, max_times_sampled=max_times)
        table.limiter = MinimumSize(1)
        assert table.sample(5 * max_times).data["value"].tolist() == list(np.repeat(values, max_times))
        assert table.size == 0


def test_draws_beyond_max_times_sampled_are_repeated():
    """With max_times_sampled=2, drawing 2000 times from 1000 items draws each twice, with every sampler."""
    for sampler in (None, Prioritised(1.0), MinHeap()):
        table, _ = filled(1000, capacity=1000, sampler=sampler, max_times_sampled=2)
        counts = np.bincount(table.sample(1000).data["value"], minlength=1000)
        counts += np.bincount(table.sample(1000).data["value"], minlength=1000)
        assert (counts == 2).all() and table.size == 0


def test_a_seed_makes_sampling_deterministic():
    table, _ = filled(50)
    keys = [table.sample(10, seed=seed).info.key.tolist() for seed in (3, 4, 3, np.random.default_rng(3))]
    assert keys[0] == keys[2] == keys[3] != keys[1]


@pytest.mark.parametrize("kind", sorted(SELECTORS))
@pytest.mark.parametrize("own", [True, False])
def test_a_restored_table_continues_like_the_saved_one(kind, own):
    def make():
        store = None if own else Store({"value": np.int64(0)}, capacity=30)
        selectors = {"sampler": SELECTORS[kind](), "remover": SELECTORS[kind]()}
        return Table({"value": np.int64(0)} if own else None, store=store, capacity=20, **selectors)

    def use(table):
        table.insert({"value": np.arange(7)}, np.linspace(0, 2, 7))
        keys = table.sample(9).info.key
        table.update(keys, np.linspace(1, 3, 9))
        table.delete(keys[:2])
        return keys.tolist(), table.sample(5).data["value"].tolist(), table.info(), table.items().key.tolist()

    table, other = make(), make()
    for _ in range(5):
        use(table)
    other.store.restore(table.store.state())
    other.restore(table.state())
    for _ in range(5):
        assert use(table) == use(other)
    with pytest.raises(WeftError, match="holds 3 items and the saved one 20"):
        Table({"value": np.int64(0)}, capacity=3).restore(table.state())


def test_threads_insert_sample_and_update_concurrently():
    table, _ = filled(0, sampler=Prioritised(), limiter=SamplesPerInsert(2.0, 10, 40.0), capacity=64)

    def write():
        for number in range(50):
            table.insert({"value": np.full(8, number)}, timeout=60)

    def read():
        for _ in range(100):
            info = table.sample(8, timeout=60).info
            table.update(info.key, np.arange(8) / 4)

    for future in [in_thread(call) for call in (write, read, write, read)]:
        future.result(60)
    assert (table.inserted, table.sampled, table.size) == (800, 1600, 64)


def test_invalid_arguments_are_rejected():
    for options, why in (
        ({}, "either a signature"),
        ({"signature": STEP, "capacity": 0}, "capacity is 0"),
        ({"signature": STEP, "length": 0}, "length 0"),
    ):
        with pytest.raises(WeftError, match=why):
            Table(**{"capacity": 5, **options})
    table = Table({"value": 0}, capacity=5, length=2)
    table.store.append({"value": [1, 2]})
    for start, length in ((0, 3), (0, 0), (1, 2), (-1, 1)):
        with pytest.raises(WeftError, match=re.escape("table 'table': ")):
            table.insert_items([start], length)
