"""A client's table is the server's: the same calls, the same answers, each change once whatever the connection does."""

import threading
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.replay.server.serving import CALLS, SIGNATURE, Cutter, alike, play, served, steps, table
from weft.errors import WeftError
from weft.replay.limiter import Queue
from weft.replay.patterns import First, Last, Pick
from weft.replay.pipeline import Pipeline
from weft.replay.selectors import Fifo, Prioritised
from weft.replay.server.calls import Request
from weft.replay.server.client import connect
from weft.replay.server.server import Server
from weft.replay.server.service import Service
from weft.replay.store import Store
from weft.replay.table import Table
from weft.replay.writer import Writer


@pytest.mark.parametrize("shared", [True, False])
@given(calls=CALLS)
@settings(max_examples=40)
def test_it_answers_as_a_table_of_the_same_seed_does(calls, shared):
    make = lambda: table(capacity=20, sampler=Prioritised(0.7), seed=3)  # noqa: E731
    with served(make(), shared=shared) as (_, client):
        here, there = make(), client.table("a")
        for left, right in zip(play(here, calls), play(there, calls), strict=True):
            assert alike(left, right)
        assert here.info() == there.info() and here.limiter == there.limiter and here.size == there.size


def test_steps_come_back_in_the_form_that_is_asked_for():
    class Step(NamedTuple):
        obs: tuple
        reward: np.ndarray

    step = Step((np.zeros(2), np.zeros(1, bool)), np.float32(0))
    with served(Table(step, capacity=9, name="a")) as (_, client):
        batch = Step((np.ones((3, 2)), np.ones((3, 1), bool)), np.arange(3, dtype=np.float32))
        client.table("a").insert(batch)
        assert isinstance(client.table("a", step).sample(2).data, Step)
        plain = client.table("a").sample(2).data
        assert plain["obs"]["0"].shape == (2, 2) and plain["obs"]["1"].all()
        with pytest.raises(WeftError, match="unknown table 'b': .*known: a"):
            client.table("b")


@pytest.mark.parametrize("shared", [True, False])
def test_large_batches_go_both_ways(shared):
    frames = np.random.default_rng(0).integers(0, 256, (500, 84, 84)).astype(np.uint8)
    flat = np.zeros((500, 84, 84), np.uint8)
    with served(
        Table({"frame": frames[0], "flat": flat[0]}, capacity=500, name="a", sampler=Fifo()), shared=shared
    ) as (_, client):
        assert client.local is shared
        remote = client.table("a")
        keys = remote.insert({"frame": frames, "flat": flat})
        for _ in range(4):
            data, info = remote.sample(300)
            assert (info.key == keys[0]).all() and (data["frame"] == frames[0]).all() and not data["flat"].any()
        held = [remote.sample(100, seed=i) for i in range(5)]
        again = [remote.sample(100, seed=i) for i in range(5)]
        assert all(alike(left.data, right.data) for left, right in zip(held, again, strict=True))


def test_samples_are_under_way_while_one_is_worked_on():
    with served(table(seed=5)) as (server, client):
        remote, here = client.table("a"), table(seed=5)
        remote.insert(steps(100))
        here.insert(steps(100))
        ahead = remote.samples(7, ahead=3)
        for _ in range(20):
            assert alike(next(ahead), here.sample(7))
        assert remote.insert(steps(1000)).shape == (1000,)  # with replies that nobody has read yet
        ahead.close()
        assert server.service.tables["a"].sampled == 7 * 23
        assert alike(remote.sample(3).info.length, np.ones(3, np.int32))
        assert not client._link.unwanted and not client._link.arrived


@pytest.mark.parametrize("shared", [True, False])
def test_a_client_that_does_not_read_can_still_send(shared):
    """Replies that fill the way back are read while a large request goes out."""
    big = Table({"x": np.zeros(1 << 16, np.uint8)}, capacity=300, name="a")
    with served(big, shared=shared) as (_, client):
        remote = client.table("a")
        remote.insert({"x": np.zeros((100, 1 << 16), np.uint8)})
        ahead = remote.samples(100, ahead=6)
        next(ahead)
        remote.insert({"x": np.ones((200, 1 << 16), np.uint8)})
        assert next(ahead).data["x"].shape == (100, 1 << 16)
        ahead.close()


def test_an_append_is_a_store_s_and_makes_items():
    store = Store(SIGNATURE, capacity=60, rows=2)
    with served(Table(store=store, capacity=50, length=3, name="a", sampler=Fifo())) as (_, client):
        remote = client.table("a")
        positions, keys = remote.append(steps(4), rows=[0, 1, 0, 1])
        assert positions.tolist() == [0, 1, 2, 3] and len(keys) == 0
        positions, keys = remote.append(steps(2, 10), rows=[0, 1], last=[0, 1], length=[3, 2], priority=[2.0, 1.0])
        found = remote.items(keys)
        assert found.start.tolist() == [0, 3] and found.length.tolist() == [3, 2]
        assert found.priority.tolist() == [2.0, 1.0]
        assert remote.sample(1).data["reward"].tolist() == [[0, 2, 10]]
        with pytest.raises(WeftError, match="numbered from 0 to 1"):
            remote.append(steps(2), rows=[0, 1], last=[2], length=[1])


@pytest.mark.parametrize("shared", [True, False])
def test_what_a_pattern_or_a_pipeline_leaves_out_is_not_moved(shared):
    store = Store(SIGNATURE, capacity=900)
    pattern = Pick({"obs/place": First(), "last": Last("reward")})
    picked = Table(store=store, capacity=50, length=3, name="a", pattern=pattern)
    whole = Table(store=store, capacity=50, length=3, name="b", sampler=Fifo())
    positions = store.append(steps(800))
    for each in (picked, whole):
        each.insert_items(positions[10:50], 3)
    with served(picked, whole, shared=shared) as (_, client):
        sample = client.table("a").sample(9)
        assert sample.data["obs"].keys() == {"place"} and sample.data["last"].shape == (9,)
        assert (sample.data["obs"]["place"][:, 0] + 2 == sample.data["last"]).all()
        pipeline = (
            Pipeline().reduce("reward", "sum", axis=1).keep("reward", "obs/seen").transpose("obs/seen", 1, 0, 3, 2)
        )
        for _ in range(3):
            data = client.table("b", pipeline=pipeline).sample(700).data
            assert (data["reward"] == 10 + 11 + 12).all() and data["obs"]["seen"].shape == (3, 700, 2, 2)
        with pytest.raises(WeftError, match="only booleans and numbers are sent|pipeline"):
            client.table("b", pipeline=Pipeline((("cast", {"name": "reward", "dtype": "O"}),))).sample(1)
        client.ping()


def episodes(writer):
    """Steps of three rows, in which episodes of different lengths end."""
    for t in range(40):
        reward = 100.0 * np.arange(3) + t
        writer.append({"reward": reward, "terminated": np.array([t % 7 == 6, t % 11 == 10, False])}, priority=reward)
    steps = {"reward": np.arange(36.0).reshape(12, 3), "terminated": np.zeros((12, 3), bool)}
    writer.append_many(steps, priority=np.ones((12, 3)))
    writer.flush()


@pytest.mark.parametrize("cuts", [set(), {4, 9, 30}])
@pytest.mark.parametrize("options", [{}, {"whole": True, "chunk": 3}, {"period": 2, "mix": 0.5}])
def test_a_writer_writes_to_a_server_s_tables_as_to_its_own(options, cuts):
    signature = {"reward": np.float32(0), "terminated": np.bool_(False)}

    def make():
        store = Store(signature, capacity=300, rows=3)
        return [Table(store=store, capacity=200, length=4, name=name, sampler=Prioritised()) for name in ("a", "b")]

    here, there = make(), make()
    episodes(Writer(here, length=4, **options))
    with Server(there) as server:
        cutter = Cutter(server.address, cuts)
        with connect(cutter.address, server.token, shared=False) as client:
            remote = [client.table(name) for name in ("a", "b")]
            episodes(Writer(remote, length=4, **options))
            remote[0].store.flush()
            with pytest.raises(WeftError, match="each writer needs its own rows"):
                other = connect(server.address, server.token).table("a")
                other.store.counts[:] -= 1
                other.store.append_checked([np.zeros(1), np.zeros(1, bool)], 1, [0])
                other.store.flush()
            other.client.close()
        cutter.close()
    assert all(alike(mine.items(), yours.items()) for mine, yours in zip(here, there, strict=True))
    assert (here[0].store.counts == there[0].store.counts).all()
    assert alike(here[0].sample(20), there[0].sample(20))


@given(cuts=st.sets(st.integers(1, 40), max_size=12))
@settings(max_examples=15)
def test_what_was_done_before_the_connection_broke_is_not_done_again(cuts):
    with Server([table()]) as server:
        cutter = Cutter(server.address, cuts)
        with connect(cutter.address, server.token, shared=False) as client:
            remote = client.table("a")
            keys = [remote.insert(steps(3, 3 * i)) for i in range(10)]
            found = remote.update(np.concatenate(keys), np.full(30, 2.0))
            assert found == 30 and remote.delete(keys[0]) == 3
            assert len(remote.sample(5).info.key) == 5
        cutter.close()
        here = server.service.tables["a"]
        assert here.inserted == 30 and here.size == 27
        assert sorted(here.items().key.tolist()) == sorted(np.concatenate(keys[1:]).tolist())


def test_a_request_that_comes_again_while_the_first_waits_is_carried_out_once():
    queue = table(limiter=Queue(2), sampler=Fifo(), max_times_sampled=1)
    service = Service([queue])
    arrays = {"data/obs/place": np.zeros((2, 3)), "data/obs/seen": np.zeros((2, 2, 2), "u1"), "data/reward": np.ones(2)}
    first, again = (Request("me", number, "insert", "a", {}, arrays) for number in (1, 2))
    service.call(first)
    found = []
    threads = [threading.Thread(target=lambda: found.append(service.call(again))) for _ in range(4)]
    for thread in threads:
        thread.start()
    service.call(Request("you", 1, "sample", "a", {"n": 2}, {}))
    for thread in threads:
        thread.join(10)
    assert queue.inserted == 4 and len({tuple(reply.arrays["key"].tolist()) for reply in found}) == 1


def test_several_threads_share_a_client():
    with served(table(capacity=5000)) as (_, client):
        remote = client.table("a")
        remote.insert(steps(1))
        failures = []

        def work(number):
            try:
                for i in range(30):
                    keys = remote.insert(steps(4, number))
                    assert (remote.items(keys).key == keys).all()
                    assert len(remote.sample(i + 1).info.key) == i + 1
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures and remote.size == 1 + 6 * 30 * 4


def test_a_server_that_is_not_there_is_given_up_after_a_while():
    with Server([table()]) as server:
        client = connect(server.address, server.token, patience=0.3)
    with pytest.raises(WeftError, match=r"has not answered for 0.3 s .*: is it running there\?"):
        client.ping()
    client.close()
    with pytest.raises(WeftError, match="the client of .* is closed"):
        client.ping()
    with pytest.raises(WeftError, match="not of the form host:port"):
        connect("nowhere", "x")
