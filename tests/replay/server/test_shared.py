"""Shared memory is lent, given back, and gone when its owners are."""

import fcntl
import gc
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest

from tests.replay.server.serving import served, steps
from weft.replay.limiter import Queue
from weft.replay.server import shared, wire
from weft.replay.table import Table


def frames(n):
    return {"frame": np.arange(n * 5000, dtype=np.uint32).reshape(n, 5000)}


def big():
    return Table({"frame": np.zeros(5000, np.uint32)}, capacity=100, name="a")


def shared_files(process):
    """The open segments of a process, by the name that they were made with."""
    folder = f"/proc/{process}/fd"
    links = [os.readlink(f"{folder}/{name}") for name in os.listdir(folder) if os.path.lexists(f"{folder}/{name}")]
    return [link for link in links if "weft-replay" in link and "memfd" in link]


def test_a_sample_stays_as_it_is_for_as_long_as_somebody_has_it():
    with served(big()) as (_, client):
        remote = client.table("a")
        keys = remote.insert(frames(50))
        samples = [remote.sample(40, seed=i) for i in range(6)]
        views = [sample.data["frame"][3:5, ::7] for sample in samples]
        expected = [frames(50)["frame"][np.searchsorted(keys, sample.info.key)] for sample in samples]
        kept = [(sample.data["frame"] == rows).all() for sample, rows in zip(samples, expected, strict=True)]
        assert all(kept)
        del samples
        for _ in range(10):
            remote.sample(40)
        assert all((view == rows[3:5, ::7]).all() for view, rows in zip(views, expected, strict=True))


def test_memory_is_used_again_when_nobody_has_it_any_more():
    with served(big()) as (_, client):
        remote = client.table("a")
        remote.insert(frames(50))
        for _ in range(30):
            remote.sample(40)
        gc.collect()
        assert client.local and client.pool.made <= 4


def test_without_room_in_memory_replies_come_through_the_socket():
    with served(big()) as (_, client):
        client.pool.most = 0
        remote = client.table("a")
        remote.insert(frames(50))
        assert all(remote.sample(40).data["frame"].shape == (40, 5000) for _ in range(3))
        assert client.pool.made == 0


def test_segments_that_do_not_fit_any_more_are_let_go_of_on_both_sides():
    with served(big()) as (server, client):
        client.pool.most = 1 << 22
        remote = client.table("a")
        remote.insert(frames(50))
        for n in (4, 4, 100, 100, 8, 8, 90, 90):
            assert remote.sample(n).data["frame"].shape == (n, 5000)
        taken = sum(segment.size for segment in client.pool.segments.values())
        client.ping()
        (connection,) = server.connections
        assert taken <= client.pool.most and connection.segments.keys() <= client.pool.segments.keys()


def test_what_was_lent_on_a_broken_connection_is_not_lent_again():
    """A server that still works for the old connection must not meet the data of the new one."""
    table = big()
    table.limiter = Queue(60)
    with served(table) as (server, client):
        remote = client.table("a")
        remote.insert(frames(50))
        pool, found = client.pool, []
        waiting = threading.Thread(target=lambda: found.append(remote.insert({"frame": frames(70)["frame"][50:]})))
        waiting.start()
        while not any(answer for answer in server.service.answers.clients[client.name].values() if not answer.reply):
            time.sleep(0.001)
        for connection in list(server.connections):
            connection.close()
        samples = [remote.sample(8) for _ in range(3)]
        assert client.pool is not pool and len(samples) == 3
        waiting.join(10)
        assert table.inserted == 70
        assert (table.store.read(table.items(found[0]).start)["frame"] == frames(70)["frame"][50:]).all()


def test_only_sealed_memory_is_taken():
    plain = os.memfd_create("plain", os.MFD_ALLOW_SEALING)
    os.ftruncate(plain, 4096)
    with pytest.raises(wire.WireError, match="not sealed"):
        shared.Segment.of(plain, 1, 1 << 20)
    fcntl.fcntl(plain, fcntl.F_ADD_SEALS, shared.SEALS)
    with pytest.raises(wire.WireError, match="over 100"):
        shared.Segment.of(plain, 1, 100)
    segment = shared.Segment.of(plain, 1, 4096)
    with pytest.raises(wire.WireError, match="bytes 4,000 to 4,100 of a segment of 4,096"):
        segment.part(4000, 100)
    with pytest.raises(OSError):
        os.ftruncate(plain, 10)
    segment.close()


def local_connection(server):
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect("\0" + server.name)
    wire.send(connection, wire.encode({"id": 0, "method": "hello", "token": server.token, "client": "x"}, {}))
    wire.receive(connection, wire.Limits())
    return connection


@pytest.mark.parametrize(
    ("head", "arrays"),
    [
        ({"method": "segment", "segment": 1}, {}),
        ({"method": "segment", "segment": [1]}, {}),
        ({"method": "update"}, {"key": wire.Placed(np.zeros(4, np.uint64), 1, 0)}),
        ({"method": "update"}, {"key": wire.Placed(np.zeros(4, np.uint64), 7, 1 << 60)}),
    ],
)
def test_memory_that_was_not_handed_over_harms_nobody(head, arrays):
    with served() as (server, client):
        with local_connection(server) as connection:
            wire.send(connection, wire.encode({"id": 1, "table": "a", "args": {}, **head}, arrays))
            assert "segment" in wire.receive(connection, wire.Limits()).head["error"]
            assert wire.receive(connection, wire.Limits()) is None
        client.table("a").insert(steps(3))


def test_files_that_nobody_asked_for_are_closed():
    with served() as (server, client):
        open_before = len(os.listdir("/proc/self/fd"))
        for _ in range(5):
            with local_connection(server) as connection, open(os.devnull) as file:
                request = b"".join(wire.encode({"id": 1, "method": "ping", "table": "", "args": {}}, {}))
                socket.send_fds(connection, [request], [file.fileno()])
                wire.receive(connection, wire.Limits())
        deadline = time.monotonic() + 10
        while len(os.listdir("/proc/self/fd")) > open_before and time.monotonic() < deadline:
            time.sleep(0.01)
        assert len(os.listdir("/proc/self/fd")) <= open_before
        client.ping()


CLIENT = """
    import sys, time
    import numpy as np
    from weft.replay.server.client import connect
    remote = connect(sys.argv[1], sys.argv[2]).table("a")
    held = [remote.sample(40) for _ in range(4)]
    print("ready", flush=True)
    time.sleep(60)
"""


def test_memory_is_gone_when_a_client_is_killed():
    with served(big()) as (server, client):
        client.table("a").insert(frames(50))
        before = len(shared_files(os.getpid()))
        command = [sys.executable, "-c", textwrap.dedent(CLIENT), server.address, server.token]
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert process.stdout.readline() == b"ready\n"
        assert len(shared_files(os.getpid())) > before
        process.send_signal(signal.SIGKILL)
        process.communicate()
        deadline = time.monotonic() + 10
        while len(shared_files(os.getpid())) > before and time.monotonic() < deadline:
            time.sleep(0.01)
        assert len(shared_files(os.getpid())) == before
        assert not [name for name in os.listdir("/dev/shm") if "weft" in name]
        client.ping()
