"""A server requires its token, and a client's invalid requests affect no other client."""

import contextlib
import socket
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.replay.server.serving import authenticated_socket, served, steps, table
from weft.errors import WeftError
from weft.replay.limiter import MinimumSize, Queue
from weft.replay.selectors import Fifo
from weft.replay.server import Server, connect, wire
from weft.replay.server.frame_header import Limits
from weft.replay.server.server_connection import MAX_WAITING


def test_a_server_listens_on_the_loopback_interface_and_requires_its_token(monkeypatch):
    monkeypatch.delenv("WEFT_REPLAY_TOKEN", raising=False)
    with Server([table()]) as server:
        assert server.address.startswith("127.0.0.1:") and len(server.token) > 20
        for wrong in ("no", server.token[:-1], server.token + "x"):
            with pytest.raises(WeftError, match="wrong token"):
                connect(server.address, wrong)
        with pytest.raises(WeftError, match="no token is given"):
            connect(server.address)
        monkeypatch.setenv("WEFT_REPLAY_TOKEN", server.token)
        connect(server.address).close()


def test_a_token_file_must_be_readable_only_by_its_owner(tmp_path):
    with Server([table()]) as server:
        file = tmp_path / "token"
        file.write_text(server.token + "\n")
        file.chmod(0o644)
        with pytest.raises(WeftError, match="chmod 600"):
            connect(server.address, token_file=file)
        file.chmod(0o600)
        connect(server.address, token_file=file).close()


def test_a_connection_without_the_token_cannot_change_a_table():
    with served() as (server, client):
        host, _, port = server.address.rpartition(":")
        request = wire.encode({"id": 1, "method": "reset", "table": "a", "args": {}}, {})
        client.table("a").insert(steps(3))
        with socket.create_connection((host, int(port)), timeout=10) as stranger:
            wire.send(stranger, request)
            assert "token" in wire.receive(stranger, Limits()).head["error"]
            assert wire.receive(stranger, Limits()) is None
        with socket.create_connection((host, int(port)), timeout=10) as stranger:
            stranger.sendall(wire.PREFIX.pack(wire.MAGIC, wire.VERSION, 0, 1 << 20, 1 << 30))
            assert "at most" in wire.receive(stranger, Limits()).head["error"]
        assert client.table("a").size == 3


REQUESTS = [
    ({"id": 1, "method": "ping", "table": "", "args": {}}, {}),
    ({"id": 2, "method": "sample", "table": "a", "args": {"n": 3, "timeout": 0}}, {}),
    ({"id": 3, "method": "info", "table": "a", "args": {}}, {}),
    (
        {"id": 4, "method": "update", "table": "a", "args": {}},
        {"key": np.arange(9, dtype="u8"), "priority": np.ones(9)},
    ),
    ({"id": 5, "method": "insert_items", "table": "a", "args": {}}, {"start": np.arange(4), "length": np.ones(4, int)}),
]


def test_corrupt_or_incomplete_frames_affect_no_other_client():
    with served() as (server, client):
        other = client.table("a")
        other.insert(steps(10))

        @given(data=st.data())
        @settings(max_examples=150)
        def attack(data):
            connection, welcome = authenticated_socket(server)
            assert "tables" in welcome.head
            with connection:
                head, arrays = data.draw(st.sampled_from(REQUESTS))
                frame = bytearray(b"".join(bytes(buffer) for buffer in wire.encode(head, arrays)))
                for _ in range(data.draw(st.integers(0, 6))):
                    frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
                cut = data.draw(st.integers(0, len(frame)))
                with contextlib.suppress(OSError):  # the server may have closed it already
                    connection.sendall(bytes(frame[:cut]))
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(1 << 16):
                        pass
            client.ping()
            assert len(other.sample(2, timeout=5).info.key) == 2

        attack()
        assert set(other.items().start.tolist()) <= set(range(1000))


@pytest.mark.parametrize(
    ("head", "arrays", "why"),
    [
        ({"method": "drop", "table": "a", "args": {}}, {}, "unknown method 'drop'"),
        ({"method": "sample", "table": "b", "args": {"n": 1}}, {}, "unknown table 'b'"),
        ({"method": "sample", "table": "a", "args": {"n": "many"}}, {}, "integer 'n'"),
        ({"method": "sample", "table": "a", "args": {"n": 1 << 50}}, {}, "sample fewer items"),
        ({"method": "sample", "table": "a", "args": {"n": 1, "timeout": "x"}}, {}, "expected a number of seconds"),
        ({"method": "sample", "table": "a", "args": {"n": 1, "seed": []}}, {}, ""),
        ({"method": "update", "table": "a", "args": {}}, {}, "needs an array 'key'"),
        ({"method": "update", "table": "a", "args": {}}, {"key": np.arange(2), "priority": np.ones(3)}, ""),
        (
            {"method": "insert", "table": "a", "args": {}},
            {"data/reward": np.ones(2)},
            "expected steps with the columns",
        ),
        ({"method": "set_limiter", "table": "a", "args": {"ratio": "x"}}, {}, ""),
        ({"method": "checkpoint", "table": "", "args": {}}, {}, "writes no checkpoints"),
        ({"method": "append", "table": "a", "args": {}}, {"last": np.ones(1, int), "length": np.ones(2, int)}, ""),
    ],
)
def test_the_reply_to_an_invalid_request_says_why(head, arrays, why):
    with served() as (server, client):
        client.table("a").insert(steps(2))
        connection, _ = authenticated_socket(server)
        with connection:
            for number in (1, 2):
                wire.send(connection, wire.encode({"id": number, **head}, arrays))
                reply = wire.receive(connection, Limits())
                assert reply.head["id"] == number and why in reply.head["error"]


@pytest.mark.parametrize("shared", [True, False])
def test_a_waiting_request_does_not_delay_other_requests(shared):
    with served(table(limiter=MinimumSize(5)), shared=shared) as (server, client):
        remote = client.table("a")
        samples = []
        waiting = threading.Thread(target=lambda: samples.append(remote.sample(4)))
        waiting.start()
        while not server.connections:
            time.sleep(0.001)
        client.ping()
        assert remote.size == 0
        remote.insert(steps(3))
        client.ping()
        assert not samples
        remote.insert(steps(2))
        waiting.join(10)
        assert len(samples[0].info.key) == 4


def test_a_request_that_times_out_says_why():
    why = "sample of 4 waited 0.2 s: it holds 0 items and the limiter requires 100"
    with served(table(limiter=MinimumSize(100))) as (_, client), pytest.raises(WeftError, match=why):
        client.table("a").sample(4, timeout=0.2)


def test_changing_the_limiter_lets_waiting_requests_continue():
    with served(table(limiter=MinimumSize(100))) as (_, client):
        remote = client.table("a")
        remote.insert(steps(3))
        samples = []
        waiting = threading.Thread(target=lambda: samples.append(remote.sample(4)))
        waiting.start()
        remote.limiter = MinimumSize(2)
        waiting.join(10)
        assert len(samples[0].info.key) == 4 and remote.limiter == MinimumSize(2)


def test_inserts_and_samples_of_a_queue_wait_for_each_other():
    queue = table(limiter=Queue(4), sampler=Fifo(), max_times_sampled=1)
    with served(queue) as (server, writer), connect(server.address, server.token) as reader:
        thread = threading.Thread(target=lambda: [writer.table("a").insert(steps(2, i)) for i in range(0, 400, 2)])
        thread.start()
        rewards = [int(reader.table("a").sample(1, timeout=20).data["reward"][0]) for _ in range(400)]
        thread.join()
        assert rewards == list(range(400))


def test_a_waiting_sample_is_abandoned_when_its_client_disconnects():
    with served(table(limiter=MinimumSize(3))) as (server, client):
        before = set(server.connections)
        connection, _ = authenticated_socket(server)
        (accepted,) = set(server.connections) - before
        wire.send(connection, wire.encode({"id": 1, "method": "sample", "table": "a", "args": {"n": 1}}, {}))
        assert becomes_true(lambda: accepted.waiting_slots._value == MAX_WAITING - 1), "the request waits"
        connection.close()
        assert becomes_true(lambda: accepted not in server.connections), "its client has disconnected"
        remote = client.table("a")
        remote.insert(steps(3))
        assert becomes_true(lambda: accepted.waiting_slots._value == MAX_WAITING), "the request is abandoned"
        assert remote.info()["sampled"] == 0


def becomes_true(condition, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.001)
    return condition()
