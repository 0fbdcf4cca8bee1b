"""A remote table gives the same results as a local one, and executes every change once even if connections are lost."""

import threading
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.replay.server.serving import CALLS, SIGNATURE, LossyProxy, call_all, identical, served, steps, table
from weft.errors import WeftError
from weft.replay.limiter import Queue
from weft.replay.patterns import First, Last, Pick
from weft.replay.pipeline import Pipeline
from weft.replay.selectors import Fifo, Prioritised
from weft.replay.server import Server, connect
from weft.replay.server.protocol import Request
from weft.replay.server.request_handler import RequestHandler
from weft.replay.store import Store
from weft.replay.table import Table
from weft.replay.writer import Writer


@pytest.mark.parametrize("shared", [True, False])
@given(calls=CALLS)
@settings(max_examples=40)
def test_a_remote_table_gives_the_results_of_a_local_table_with_the_same_seed(calls, shared):
    make = lambda: table(capacity=20, sampler=Prioritised(0.7), seed=3)  # noqa: E731
    with served(make(), shared=shared) as (_, client):
        local, remote = make(), client.table("a")
        for expected, result in zip(call_all(local, calls), call_all(remote, calls), strict=True):
            assert identical(expected, result)
        assert local.info() == remote.info() and local.limiter == remote.limiter and local.size == remote.size


def test_samples_are_nested_as_the_signature():
    class Step(NamedTuple):
        obs: tuple
        reward: np.ndarray

    step = Step((np.zeros(2), np.zeros(1, bool)), np.float32(0))
    with served(Table(step, capacity=9, name="a")) as (_, client):
        batch = Step((np.ones((3, 2)), np.ones((3, 1), bool)), np.arange(3, dtype=np.float32))
        client.table("a").insert(batch)
        assert isinstance(client.table("a", step).sample(2).data, Step)
        dictionaries = client.table("a").sample(2).data
        assert dictionaries["obs"]["0"].shape == (2, 2) and dictionaries["obs"]["1"].all()
        with pytest.raises(WeftError, match="unknown table 'b': .*known: a"):
            client.table("b")


@pytest.mark.parametrize("shared", [True, False])
def test_large_batches_are_sent_and_received(shared):
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
        first = [remote.sample(100, seed=i) for i in range(5)]
        second = [remote.sample(100, seed=i) for i in range(5)]
        assert all(identical(left.data, right.data) for left, right in zip(first, second, strict=True))


@pytest.mark.parametrize("sampler", [Fifo(), Prioritised()])
def test_the_size_of_a_remote_table_needs_no_sampling_weights(sampler):
    with served(table(sampler=sampler)) as (_, client):
        client.table("a").insert(steps(3))
        assert client.table("a").size == 3


def test_samples_are_requested_in_advance():
    with served(table(seed=5)) as (server, client):
        remote, local = client.table("a"), table(seed=5)
        remote.insert(steps(100))
        local.insert(steps(100))
        samples = remote.samples(7, ahead=3)
        for _ in range(20):
            assert identical(next(samples), local.sample(7))
        assert remote.insert(steps(1000)).shape == (1000,)  # while replies to sample requests are unread
        samples.close()
        assert server.handler.tables["a"].sampled == 7 * 23
        assert identical(remote.sample(3).info.length, np.ones(3, np.int32))
        connection = client.session.connection()
        assert not connection.cancelled and not connection.replies


@pytest.mark.parametrize("shared", [True, False])
def test_a_client_with_unread_replies_can_send_a_large_request(shared):
    """Unread replies fill the server's send buffer; the client reads them while it sends."""
    big = Table({"x": np.zeros(1 << 16, np.uint8)}, capacity=300, name="a")
    with served(big, shared=shared) as (_, client):
        remote = client.table("a")
        remote.insert({"x": np.zeros((100, 1 << 16), np.uint8)})
        samples = remote.samples(100, ahead=6)
        next(samples)
        remote.insert({"x": np.ones((200, 1 << 16), np.uint8)})
        assert next(samples).data["x"].shape == (100, 1 << 16)
        samples.close()


def test_append_writes_steps_to_the_store_and_inserts_items():
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
        with pytest.raises(WeftError, match="expected `last` from 0 to 1"):
            remote.append(steps(2), rows=[0, 1], last=[2], length=[1])


@pytest.mark.parametrize("shared", [True, False])
def test_a_sample_has_only_the_columns_of_the_pattern_and_the_pipeline(shared):
    store = Store(SIGNATURE, capacity=900)
    pattern = Pick({"obs/vector": First(), "last": Last("reward")})
    picked = Table(store=store, capacity=50, length=3, name="a", pattern=pattern)
    whole = Table(store=store, capacity=50, length=3, name="b", sampler=Fifo())
    positions = store.append(steps(800))
    for each in (picked, whole):
        each.insert_items(positions[10:50], 3)
    with served(picked, whole, shared=shared) as (_, client):
        sample = client.table("a").sample(9)
        assert sample.data["obs"].keys() == {"vector"} and sample.data["last"].shape == (9,)
        assert (sample.data["obs"]["vector"][:, 0] + 2 == sample.data["last"]).all()
        pipeline = (
            Pipeline().reduce("reward", "sum", axis=1).keep("reward", "obs/image").transpose("obs/image", 1, 0, 3, 2)
        )
        for _ in range(3):
            data = client.table("b", pipeline=pipeline).sample(700).data
            assert (data["reward"] == 10 + 11 + 12).all() and data["obs"]["image"].shape == (3, 700, 2, 2)
        with pytest.raises(WeftError, match="only booleans and numbers can be sent|pipeline"):
            client.table("b", pipeline=Pipeline((("cast", {"name": "reward", "dtype": "O"}),))).sample(1)
        client.ping()


def write_episodes(writer):
    """Writes steps of three rows; their episodes have different lengths."""
    for t in range(40):
        reward = 100.0 * np.arange(3) + t
        writer.append({"reward": reward, "terminated": np.array([t % 7 == 6, t % 11 == 10, False])}, priority=reward)
    steps = {"reward": np.arange(36.0).reshape(12, 3), "terminated": np.zeros((12, 3), bool)}
    writer.append_many(steps, priority=np.ones((12, 3)))
    writer.flush()


@pytest.mark.parametrize("lost_replies", [set(), {4, 9, 30}])
@pytest.mark.parametrize("options", [{}, {"whole": True, "chunk": 3}, {"period": 2, "mix": 0.5}])
def test_a_writer_writes_the_same_items_to_remote_tables_as_to_local_tables(options, lost_replies):
    signature = {"reward": np.float32(0), "terminated": np.bool_(False)}

    def make():
        store = Store(signature, capacity=300, rows=3)
        return [Table(store=store, capacity=200, length=4, name=name, sampler=Prioritised()) for name in ("a", "b")]

    local, on_server = make(), make()
    write_episodes(Writer(local, length=4, **options))
    with Server(on_server) as server:
        proxy = LossyProxy(server.address, lost_replies)
        with connect(proxy.address, server.token, shared=False) as client:
            remote = [client.table(name) for name in ("a", "b")]
            write_episodes(Writer(remote, length=4, **options))
            remote[0].store.flush()
            with pytest.raises(WeftError, match="another writer has appended to the same rows"):
                other = connect(server.address, server.token).table("a")
                other.store.counts[:] -= 1
                other.store.append_checked([np.zeros(1), np.zeros(1, bool)], 1, [0])
                other.store.flush()
            other.session.close()
        proxy.close()
    assert all(identical(left.items(), right.items()) for left, right in zip(local, on_server, strict=True))
    assert (local[0].store.counts == on_server[0].store.counts).all()
    assert identical(local[0].sample(20), on_server[0].sample(20))


@given(lost_replies=st.sets(st.integers(1, 40), max_size=12))
@settings(max_examples=15)
def test_a_request_whose_reply_was_lost_is_executed_once(lost_replies):
    with Server([table()]) as server:
        proxy = LossyProxy(server.address, lost_replies)
        with connect(proxy.address, server.token, shared=False) as client:
            remote = client.table("a")
            keys = [remote.insert(steps(3, 3 * i)) for i in range(10)]
            found = remote.update(np.concatenate(keys), np.full(30, 2.0))
            assert found == 30 and remote.delete(keys[0]) == 3
            assert len(remote.sample(5).info.key) == 5
        proxy.close()
        on_server = server.handler.tables["a"]
        assert on_server.inserted == 30 and on_server.size == 27
        assert sorted(on_server.items().key.tolist()) == sorted(np.concatenate(keys[1:]).tolist())


def test_a_request_repeated_while_the_first_one_waits_is_executed_once():
    queue = table(limiter=Queue(2), sampler=Fifo(), max_times_sampled=1)
    handler = RequestHandler([queue])
    arrays = {
        "data/obs/vector": np.zeros((2, 3)),
        "data/obs/image": np.zeros((2, 2, 2), "u1"),
        "data/reward": np.ones(2),
    }
    first, repeated = (Request("me", number, "insert", "a", {}, arrays) for number in (1, 2))
    handler.handle(first)
    replies = []
    threads = [threading.Thread(target=lambda: replies.append(handler.handle(repeated))) for _ in range(4)]
    for thread in threads:
        thread.start()
    handler.handle(Request("you", 1, "sample", "a", {"n": 2}, {}))
    for thread in threads:
        thread.join(10)
    assert queue.inserted == 4 and len({tuple(reply.arrays["key"].tolist()) for reply in replies}) == 1


def test_several_threads_can_use_one_client():
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


def test_a_client_raises_if_the_server_does_not_answer():
    with Server([table()]) as server:
        client = connect(server.address, server.token, patience=0.3)
    with pytest.raises(WeftError, match=r"has not answered for 0.3 s .*: is it running there\?"):
        client.ping()
    client.close()
    with pytest.raises(WeftError, match="the client of .* is closed"):
        client.ping()
    with pytest.raises(WeftError, match="not of the form host:port"):
        connect("nowhere", "x")
