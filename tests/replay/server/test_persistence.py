"""Acknowledged changes survive the death of the server, and restored tables continue with the exact state."""

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

from tests.replay.server.serving import SIGNATURE, identical, served, steps, table
from weft.errors import WeftError
from weft.replay import checkpoint
from weft.replay.limiter import Queue
from weft.replay.selectors import Fifo
from weft.replay.server import Server, connect, journal
from weft.replay.server.persistence import Persistence
from weft.replay.server.protocol import Request
from weft.replay.server.request_handler import RequestHandler
from weft.replay.store import Store
from weft.replay.table import Table


def test_a_server_writes_checkpoints_while_it_serves(tmp_path):
    handler = RequestHandler([table(seed=2)])
    persistence = Persistence(tmp_path, handler)
    with Server(handler) as server, connect(server.address, server.token) as client:
        remote = client.table("a")
        stop = threading.Event()
        keys = []

        def insert():
            while not stop.is_set():
                keys.append(remote.insert(steps(3, len(keys))))

        thread = threading.Thread(target=insert)
        thread.start()
        paths = [client.checkpoint() for _ in range(5)]
        stop.set()
        thread.join()
        size = remote.size
    persistence.close()
    assert [Path(path).exists() for path in paths] == [False] * 4 + [True]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-000006", "log-000006"]
    restored = RequestHandler([table(seed=99)])
    Persistence(tmp_path, restored).close()
    assert restored.tables["a"].size == size and identical(restored.tables["a"].items(), handler.tables["a"].items())
    assert identical(restored.tables["a"].sample(50), handler.tables["a"].sample(50))


ARRAYS = {"data/obs/vector": np.zeros((2, 3)), "data/obs/image": np.zeros((2, 2, 2), "u1"), "data/reward": np.ones(2)}


def test_a_request_repeated_after_a_restart_is_executed_once(tmp_path):
    """The first reply is in the checkpoint, the second one in the journal."""
    first, second = (Request("me", number, "insert", "a", {}, ARRAYS) for number in (1, 2))
    handler = RequestHandler([table()])
    persistence = Persistence(tmp_path, handler)
    replies = [handler.handle(first)]
    persistence.save()
    replies.append(handler.handle(second))
    persistence.close()
    restored = RequestHandler([table()])
    Persistence(tmp_path, restored).close()
    assert [restored.handle(request).arrays["key"].tolist() for request in (first, second)] == [
        reply.arrays["key"].tolist() for reply in replies
    ]
    assert restored.tables["a"].inserted == 4


@given(cut=st.integers(0, 10**6), flip=st.booleans())
@settings(max_examples=40)
def test_a_corrupt_end_of_the_journal_is_dropped_and_all_before_it_restored(tmp_path_factory, cut, flip):
    folder = tmp_path_factory.mktemp("saved")
    handler = RequestHandler([table()])
    persistence = Persistence(folder, handler)
    ends = [handler.journal.size]
    for number in range(5):
        handler.handle(Request("me", number, "insert", "a", {}, ARRAYS))
        ends.append(handler.journal.size)
    persistence.close()
    log = folder / "log-000001"
    cut %= ends[-1]
    data = bytearray(log.read_bytes())
    data[cut] ^= 0x55
    log.write_bytes(bytes(data) if flip else bytes(data[:cut]))
    intact = sum(end <= cut for end in ends[1:])
    restored = RequestHandler([table()])
    persistence = Persistence(folder, restored)
    assert restored.tables["a"].inserted == 2 * intact and log.stat().st_size == ends[intact]
    restored.handle(Request("you", 1, "insert", "a", {}, ARRAYS))
    persistence.close()
    third = RequestHandler([table()])
    Persistence(folder, third).close()
    assert third.tables["a"].inserted == 2 * intact + 2


def raise_disk_full(*_, **__):
    raise OSError(28, "No space left on device")


def test_an_incomplete_checkpoint_is_ignored(tmp_path, monkeypatch):
    handler = RequestHandler([table()])
    persistence = Persistence(tmp_path, handler)
    handler.handle(Request("me", 1, "insert", "a", {}, ARRAYS))
    with monkeypatch.context() as patch, pytest.raises(WeftError, match="cannot be written: No space left"):
        patch.setattr(checkpoint.np, "save", raise_disk_full)
        persistence.save()
    handler.handle(Request("me", 2, "insert", "a", {}, ARRAYS))
    persistence.close()
    (tmp_path / ".checkpoint-000002.1.partial").mkdir()
    restored = RequestHandler([table()])
    Persistence(tmp_path, restored).close()
    assert restored.tables["a"].inserted == 4
    assert sorted(path.name for path in tmp_path.glob("log-*")) == ["log-000001", "log-000002"]


def test_changes_are_rejected_when_the_journal_cannot_be_written(tmp_path, monkeypatch):
    handler = RequestHandler([table()])
    persistence = Persistence(tmp_path, handler)
    size = handler.journal.size
    with monkeypatch.context() as patch:
        patch.setattr(journal.os, "writev", raise_disk_full)
        with pytest.raises(WeftError, match="No space left on device. This change may be lost"):
            handler.handle(Request("me", 1, "insert", "a", {}, ARRAYS))
    with pytest.raises(WeftError, match="Make room on the disk and take a checkpoint"):
        handler.handle(Request("me", 2, "insert", "a", {}, ARRAYS))
    assert (tmp_path / "log-000001").stat().st_size == size
    persistence.save()
    handler.handle(Request("me", 3, "insert", "a", {}, ARRAYS))
    persistence.close()


def test_failed_requests_lead_to_the_same_state_when_they_are_redone(tmp_path):
    def make():
        return Table(store=Store(SIGNATURE, capacity=40), capacity=20, length=2, name="a")

    handler = RequestHandler([make()])
    persistence = Persistence(tmp_path, handler)
    with Server(handler) as server, connect(server.address, server.token) as client:
        remote = client.table("a")
        remote.append(steps(3), last=[1], length=[2])
        with pytest.raises(WeftError, match="expected 1 to 2"):
            remote.append(steps(3), last=[1], length=[9])
        remote.append(steps(3, 50), last=[1], length=[2])
    persistence.close()
    restored = RequestHandler([make()])
    Persistence(tmp_path, restored).close()
    assert identical(restored.tables["a"].items(), handler.tables["a"].items())
    assert identical(restored.tables["a"].sample(9), handler.tables["a"].sample(9))


SERVER = """
    import sys, threading
    from tests.replay.server.serving import table
    from weft.replay.server import Server
    from weft.replay.server.persistence import Persistence
    from weft.replay.server.request_handler import RequestHandler
    handler = RequestHandler([table(capacity=100_000, seed=4)])
    persistence = Persistence(sys.argv[1], handler, sync=sys.argv[4] == "sync")
    persistence.start_saving(0.05)
    server = Server(handler, sys.argv[2], token=sys.argv[3])
    print(server.address, flush=True)
    threading.Event().wait()
"""


def start(folder, address, sync=""):
    command = [sys.executable, "-c", textwrap.dedent(SERVER), str(folder), address, "secret", sync]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3])
    return process, process.stdout.readline().strip()


@pytest.mark.parametrize("sync", ["", "sync"])
def test_a_server_killed_under_load_has_every_acknowledged_change_exactly_once(tmp_path, sync):
    process, address = start(tmp_path, "127.0.0.1:0", sync)
    acknowledged: list[dict[float, int]] = [{} for _ in range(4)]
    failures = []
    stop = threading.Event()

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
                    if stop.is_set():
                        return
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(2):
        before = [len(each) for each in acknowledged]
        while any(len(each) < 60 + count for each, count in zip(acknowledged, before, strict=True)) and not failures:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        process, address = start(tmp_path, address, sync)
        assert not failures, failures
    stop.set()
    for thread in threads:
        thread.join()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not failures, failures
    handler = RequestHandler([table(capacity=100_000, seed=4)])
    Persistence(tmp_path, handler).close()
    items = handler.tables["a"].items()
    found = handler.tables["a"].store.read(items.start)["reward"]
    expected = {key: reward for each in acknowledged for reward, key in each.items()}
    assert dict(zip(items.key.tolist(), found.tolist(), strict=True)) == expected


def test_a_journal_is_private_and_contains_only_json_and_arrays(tmp_path):
    log = journal.Journal(tmp_path / "log")
    log.append({"client": "x", "id": 1, "method": "reset", "table": "a", "args": {}}, {"x": np.arange(3)})
    log.close()
    (message,) = journal.read_records(tmp_path / "log")
    assert json.dumps(message.head) and message.arrays["x"].tolist() == [0, 1, 2]
    assert os.stat(tmp_path / "log").st_mode & 0o077 == 0


def test_a_queue_is_restored_with_its_items_in_order(tmp_path):
    def make():
        return table(limiter=Queue(4), sampler=Fifo(), max_times_sampled=1)

    handler = RequestHandler([make()])
    persistence = Persistence(tmp_path, handler)
    with Server(handler) as server, connect(server.address, server.token) as client:
        client.table("a").insert(steps(4))
        assert client.table("a").sample(1).data["reward"].tolist() == [0]
    persistence.close()
    restored = RequestHandler([make()])
    Persistence(tmp_path, restored).close()
    with served(restored.tables["a"]) as (_, client):
        assert client.table("a").sample(3).data["reward"].tolist() == [1, 2, 3]
