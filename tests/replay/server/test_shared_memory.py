"""Shared memory is leased, reused, and freed when the client or the server ends."""

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
from weft.replay.server import shared_memory, wire
from weft.replay.server.frame_header import Limits, WireError
from weft.replay.table import Table


def frames(n):
    return {"frame": np.arange(n * 5000, dtype=np.uint32).reshape(n, 5000)}


def frame_table():
    return Table({"frame": np.zeros(5000, np.uint32)}, capacity=100, name="a")


def shared_files(process):
    """The links in /proc to the open segments of a process."""
    folder = f"/proc/{process}/fd"
    links = [os.readlink(f"{folder}/{name}") for name in os.listdir(folder) if os.path.lexists(f"{folder}/{name}")]
    return [link for link in links if "weft-replay" in link and "memfd" in link]


def test_the_arrays_of_a_sample_keep_their_contents_as_long_as_they_exist():
    with served(frame_table()) as (_, client):
        remote = client.table("a")
        keys = remote.insert(frames(50))
        samples = [remote.sample(40, seed=i) for i in range(6)]
        views = [sample.data["frame"][3:5, ::7] for sample in samples]
        expected = [frames(50)["frame"][np.searchsorted(keys, sample.info.key)] for sample in samples]
        assert all((sample.data["frame"] == rows).all() for sample, rows in zip(samples, expected, strict=True))
        del samples
        for _ in range(10):
            remote.sample(40)
        assert all((view == rows[3:5, ::7]).all() for view, rows in zip(views, expected, strict=True))


def test_a_segment_is_reused_when_its_arrays_are_garbage_collected():
    with served(frame_table()) as (_, client):
        remote = client.table("a")
        remote.insert(frames(50))
        for _ in range(30):
            remote.sample(40)
        gc.collect()
        assert client.local and client.session.pool.created <= 4


def test_replies_go_through_the_socket_when_the_pool_is_full():
    with served(frame_table()) as (_, client):
        client.session.pool.max_bytes = 0
        remote = client.table("a")
        remote.insert(frames(50))
        assert all(remote.sample(40).data["frame"].shape == (40, 5000) for _ in range(3))
        assert client.session.pool.created == 0


def test_unsuitable_segments_are_closed_by_client_and_server():
    with served(frame_table()) as (server, client):
        client.session.pool.max_bytes = 1 << 22
        remote = client.table("a")
        remote.insert(frames(50))
        for n in (4, 4, 100, 100, 8, 8, 90, 90):
            assert remote.sample(n).data["frame"].shape == (n, 5000)
        used = sum(segment.size for segment in client.session.pool.segments.values())
        client.ping()
        (connection,) = server.connections
        assert (
            used <= client.session.pool.max_bytes and connection.segments.keys() <= client.session.pool.segments.keys()
        )


def test_segments_of_a_lost_connection_are_not_reused():
    """The server may still execute a request of the lost connection, which must not see data of the new one."""
    table = frame_table()
    table.limiter = Queue(60)
    with served(table) as (server, client):
        remote = client.table("a")
        remote.insert(frames(50))
        pool, keys = client.session.pool, []
        waiting = threading.Thread(target=lambda: keys.append(remote.insert({"frame": frames(70)["frame"][50:]})))
        waiting.start()
        replies = server.handler.replies.clients[client.session.name]
        while all(pending.reply for pending in replies.values()):
            time.sleep(0.001)
        for connection in list(server.connections):
            connection.close()
        samples = [remote.sample(8) for _ in range(3)]
        assert client.session.pool is not pool and len(samples) == 3
        waiting.join(10)
        assert table.inserted == 70
        assert (table.store.read(table.items(keys[0]).start)["frame"] == frames(70)["frame"][50:]).all()


def test_a_segment_must_be_sealed():
    plain = os.memfd_create("plain", os.MFD_ALLOW_SEALING)
    os.ftruncate(plain, 4096)
    with pytest.raises(WireError, match="not sealed"):
        shared_memory.Segment.from_file(plain, 1, 1 << 20)
    fcntl.fcntl(plain, fcntl.F_ADD_SEALS, shared_memory.SEALS)
    with pytest.raises(WireError, match="exceeds 100"):
        shared_memory.Segment.from_file(plain, 1, 100)
    segment = shared_memory.Segment.from_file(plain, 1, 4096)
    with pytest.raises(WireError, match="bytes 4,000 to 4,100 are outside a segment of 4,096"):
        segment.read(4000, 100)
    with pytest.raises(OSError):
        os.ftruncate(plain, 10)
    segment.close()


def unix_connection(server):
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect("\0" + server.unix_name)
    wire.send(connection, wire.encode({"id": 0, "method": "hello", "token": server.token, "client": "x"}, {}))
    wire.receive(connection, Limits())
    return connection


@pytest.mark.parametrize(
    ("head", "arrays"),
    [
        ({"method": "segment", "segment": 1}, {}),
        ({"method": "segment", "segment": [1]}, {}),
        ({"method": "update"}, {"key": wire.SharedArray(np.zeros(4, np.uint64), 1, 0)}),
        ({"method": "update"}, {"key": wire.SharedArray(np.zeros(4, np.uint64), 7, 1 << 60)}),
    ],
)
def test_a_request_with_an_unknown_segment_ends_only_its_connection(head, arrays):
    with served() as (server, client):
        with unix_connection(server) as connection:
            wire.send(connection, wire.encode({"id": 1, "table": "a", "args": {}, **head}, arrays))
            assert "segment" in wire.receive(connection, Limits()).head["error"]
            assert wire.receive(connection, Limits()) is None
        client.table("a").insert(steps(3))


def test_unexpected_files_are_closed():
    with served() as (server, client):
        open_before = len(os.listdir("/proc/self/fd"))
        for _ in range(5):
            with unix_connection(server) as connection, open(os.devnull) as file:
                request = b"".join(wire.encode({"id": 1, "method": "ping", "table": "", "args": {}}, {}))
                socket.send_fds(connection, [request], [file.fileno()])
                wire.receive(connection, Limits())
        deadline = time.monotonic() + 10
        while len(os.listdir("/proc/self/fd")) > open_before and time.monotonic() < deadline:
            time.sleep(0.01)
        assert len(os.listdir("/proc/self/fd")) <= open_before
        client.ping()


CLIENT = """
    import sys, time
    import numpy as np
    from weft.replay.server import connect
    remote = connect(sys.argv[1], sys.argv[2]).table("a")
    samples = [remote.sample(40) for _ in range(4)]
    print("ready", flush=True)
    time.sleep(60)
"""


def test_shared_memory_is_freed_when_a_client_is_killed():
    with served(frame_table()) as (server, client):
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
