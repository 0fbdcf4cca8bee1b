"""What was saved goes on exactly; what was acknowledged outlives the process, killed in the middle of it."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.replay.server.serving import CALLS, SIGNATURE, alike, play, served, steps, table
from weft.errors import WeftError
from weft.replay import checkpoint
from weft.replay.checkpoint import restore, save
from weft.replay.limiter import Queue, SamplesPerInsert
from weft.replay.selectors import Fifo, Lifo, MaxHeap, MinHeap, Prioritised, Selector, Uniform
from weft.replay.server import Server, journal
from weft.replay.server.calls import Request
from weft.replay.server.client import connect
from weft.replay.server.keeper import Keeper
from weft.replay.server.service import Service
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
def test_a_restored_table_goes_on_as_if_nothing_had_been(tmp_path_factory, before, after, sampler, remover, times):
    path = tmp_path_factory.mktemp("saved") / "one"
    options = {"capacity": 12, "max_times_sampled": times, "seed": 8}
    if times:
        before, after = ([call for call in calls if call[0] != "sample"] for calls in (before, after))
    here = table(sampler=sampler(), remover=remover(), **options)
    play(here, before)
    save(path, [here])
    there = restore(path)["a"]
    again = restore(path, [table(sampler=sampler(), remover=remover(), **options)])["a"]
    expected = play(here, after)
    assert all(map(alike, expected, play(there, after))) and all(map(alike, expected, play(again, after)))
    assert here.info() == there.info() == again.info()


def test_tables_that_share_a_store_are_saved_together(tmp_path):
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
        assert alike(found["first"].sample(9), first.sample(9)) and alike(found["second"].sample(5), second.sample(5))
    more = steps(16, 100)
    rows = np.arange(16) % 2
    assert (found["first"].store.append(more, rows) == store.append(more, rows)).all()
    assert alike(found["first"].items(), first.items()) and first.info()["lost"] > 0


def test_the_next_checkpoint_takes_the_place_of_the_last(tmp_path):
    here = table()
    for count in (1, 2):
        here.insert(steps(3))
        save(tmp_path / "one", [here])
        assert restore(tmp_path / "one")["a"].size == 3 * count
    assert [path.name for path in tmp_path.iterdir()] == ["one"]


def test_it_says_what_cannot_be_restored(tmp_path):
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
    with pytest.raises(WeftError, match="no whole checkpoint"):
        restore(tmp_path / "nothing")
    (tmp_path / "mine" / "0.npy").write_bytes(b"")
    with pytest.raises(WeftError, match="no whole checkpoint"):
        restore(tmp_path / "mine")
    with pytest.raises(WeftError, match="cannot be written"):
        save("/proc/nowhere", [table()])


def test_a_server_saves_while_it_serves(tmp_path):
    service = Service([table(seed=2)])
    keeper = Keeper(tmp_path, service)
    with Server(service) as server, connect(server.address, server.token) as client:
        remote = client.table("a")
        stop = threading.Event()
        done = []

        def work():
            while not stop.is_set():
                done.append(remote.insert(steps(3, len(done))))

        thread = threading.Thread(target=work)
        thread.start()
        paths = [client.checkpoint() for _ in range(5)]
        stop.set()
        thread.join()
        size = remote.size
    keeper.close()
    assert [Path(path).exists() for path in paths] == [False] * 4 + [True]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-000006", "log-000006"]
    again = Service([table(seed=99)])
    Keeper(tmp_path, again).close()
    assert again.tables["a"].size == size and alike(again.tables["a"].items(), service.tables["a"].items())
    assert alike(again.tables["a"].sample(50), service.tables["a"].sample(50))


ARRAYS = {"data/obs/place": np.zeros((2, 3)), "data/obs/seen": np.zeros((2, 2, 2), "u1"), "data/reward": np.ones(2)}


def test_a_request_that_is_repeated_after_a_restart_is_not_done_again(tmp_path):
    """Whether its answer is known from the checkpoint or from the log."""
    first, second = (Request("me", number, "insert", "a", {}, ARRAYS) for number in (1, 2))
    service = Service([table()])
    keeper = Keeper(tmp_path, service)
    replies = [service.call(first)]
    keeper.save()
    replies.append(service.call(second))
    keeper.close()
    again = Service([table()])
    Keeper(tmp_path, again).close()
    assert [again.call(request).arrays["key"].tolist() for request in (first, second)] == [
        reply.arrays["key"].tolist() for reply in replies
    ]
    assert again.tables["a"].inserted == 4


@given(cut=st.integers(0, 10**6), flip=st.booleans())
@settings(max_examples=40)
def test_a_torn_end_of_the_log_is_dropped_and_all_before_it_kept(tmp_path_factory, cut, flip):
    folder = tmp_path_factory.mktemp("kept")
    service = Service([table()])
    keeper = Keeper(folder, service)
    ends = [service.journal.written]
    for number in range(5):
        service.call(Request("me", number, "insert", "a", {}, ARRAYS))
        ends.append(service.journal.written)
    keeper.close()
    log = folder / "log-000001"
    cut %= ends[-1]
    data = bytearray(log.read_bytes())
    data[cut] ^= 0x55
    log.write_bytes(bytes(data) if flip else bytes(data[:cut]))
    whole = sum(end <= cut for end in ends[1:])
    again = Service([table()])
    keeper = Keeper(folder, again)
    assert again.tables["a"].inserted == 2 * whole and log.stat().st_size == ends[whole]
    again.call(Request("you", 1, "insert", "a", {}, ARRAYS))
    keeper.close()
    third = Service([table()])
    Keeper(folder, third).close()
    assert third.tables["a"].inserted == 2 * whole + 2


def full(*_, **__):
    raise OSError(28, "No space left on device")


def test_a_checkpoint_that_was_not_finished_counts_for_nothing(tmp_path, monkeypatch):
    service = Service([table()])
    keeper = Keeper(tmp_path, service)
    service.call(Request("me", 1, "insert", "a", {}, ARRAYS))
    with monkeypatch.context() as patch, pytest.raises(WeftError, match="cannot be written: No space left"):
        patch.setattr(checkpoint.np, "save", full)
        keeper.save()
    service.call(Request("me", 2, "insert", "a", {}, ARRAYS))
    keeper.close()
    (tmp_path / ".checkpoint-000002.1.partial").mkdir()
    again = Service([table()])
    Keeper(tmp_path, again).close()
    assert again.tables["a"].inserted == 4
    assert sorted(path.name for path in tmp_path.glob("log-*")) == ["log-000001", "log-000002"]


def test_a_log_that_cannot_be_written_refuses_what_follows(tmp_path, monkeypatch):
    service = Service([table()])
    keeper = Keeper(tmp_path, service)
    written = service.journal.written
    with monkeypatch.context() as patch:
        patch.setattr(journal.os, "writev", full)
        with pytest.raises(WeftError, match="No space left on device; the call may be lost"):
            service.call(Request("me", 1, "insert", "a", {}, ARRAYS))
    with pytest.raises(WeftError, match="make room and take a checkpoint"):
        service.call(Request("me", 2, "insert", "a", {}, ARRAYS))
    assert (tmp_path / "log-000001").stat().st_size == written
    keeper.save()
    service.call(Request("me", 3, "insert", "a", {}, ARRAYS))
    keeper.close()


def test_calls_that_fail_leave_the_same_state_when_they_are_repeated(tmp_path):
    def make():
        return Table(store=Store(SIGNATURE, capacity=40), capacity=20, length=2, name="a")

    service = Service([make()])
    keeper = Keeper(tmp_path, service)
    with Server(service) as server, connect(server.address, server.token) as client:
        remote = client.table("a")
        remote.append(steps(3), last=[1], length=[2])
        with pytest.raises(WeftError, match="expected 1 to 2"):
            remote.append(steps(3), last=[1], length=[9])
        remote.append(steps(3, 50), last=[1], length=[2])
    keeper.close()
    again = Service([make()])
    Keeper(tmp_path, again).close()
    assert alike(again.tables["a"].items(), service.tables["a"].items())
    assert alike(again.tables["a"].sample(9), service.tables["a"].sample(9))


SERVER = """
    import sys, threading
    from tests.replay.server.serving import table
    from weft.replay.server.keeper import Keeper
    from weft.replay.server.server import Server
    from weft.replay.server.service import Service
    service = Service([table(capacity=100_000, seed=4)])
    keeper = Keeper(sys.argv[1], service, sync=sys.argv[4] == "sync")
    keeper.save_every(0.05)
    server = Server(service, sys.argv[2], token=sys.argv[3])
    print(server.address, flush=True)
    threading.Event().wait()
"""


def start(folder, address, sync=""):
    command = [sys.executable, "-c", textwrap.dedent(SERVER), str(folder), address, "secret", sync]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
    return process, process.stdout.readline().strip()


@pytest.mark.parametrize("sync", ["", "sync"])
def test_a_server_killed_under_load_loses_nothing_it_acknowledged_and_doubles_nothing(tmp_path, sync):
    process, address = start(tmp_path, "127.0.0.1:0", sync)
    acknowledged: list[dict[float, int]] = [{} for _ in range(4)]
    failures = []
    enough = threading.Event()

    def work(number):
        try:
            with connect(address, "secret", patience=60, shared=number % 2 == 0) as client:
                remote = client.table("a")
                for count in range(100_000):
                    first = number * 1_000_000 + 3 * count
                    keys = remote.insert(steps(3, first))
                    acknowledged[number].update(zip(range(first, first + 3), keys.tolist(), strict=True))
                    if count % 7 == 0:
                        assert remote.update(keys[:1], [first + 0.5]) == 1
                        remote.sample(5)
                    if enough.is_set():
                        return
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(2):
        before = [len(each) for each in acknowledged]
        while any(len(each) < 60 + had for each, had in zip(acknowledged, before, strict=True)) and not failures:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        process, address = start(tmp_path, address, sync)
        assert not failures, failures
    enough.set()
    for thread in threads:
        thread.join()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not failures, failures
    service = Service([table(capacity=100_000, seed=4)])
    Keeper(tmp_path, service).close()
    items = service.tables["a"].items()
    found = service.tables["a"].store.read(items.start)["reward"]
    expected = {key: reward for each in acknowledged for reward, key in each.items()}
    assert dict(zip(items.key.tolist(), found.tolist(), strict=True)) == expected


def test_a_log_is_read_without_what_could_be_run(tmp_path):
    log = journal.Journal(tmp_path / "log")
    log.write({"client": "x", "id": 1, "method": "reset", "table": "a", "args": {}}, {"x": np.arange(3)})
    log.close()
    (message,) = journal.read(tmp_path / "log")
    assert json.dumps(message.head) and message.arrays["x"].tolist() == [0, 1, 2]
    assert os.stat(tmp_path / "log").st_mode & 0o077 == 0


def test_a_queue_is_restored_with_who_waits_in_it(tmp_path):
    def make():
        return table(limiter=Queue(4), sampler=Fifo(), max_times_sampled=1)

    service = Service([make()])
    keeper = Keeper(tmp_path, service)
    with Server(service) as server, connect(server.address, server.token) as client:
        client.table("a").insert(steps(4))
        assert client.table("a").sample(1).data["reward"].tolist() == [0]
    keeper.close()
    again = Service([make()])
    Keeper(tmp_path, again).close()
    with served(again.tables["a"]) as (_, client):
        assert client.table("a").sample(3).data["reward"].tolist() == [1, 2, 3]
