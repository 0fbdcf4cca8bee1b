"""Tables, servers and an unreliable proxy, for tests of clients and servers."""

import socket
import threading
from contextlib import contextmanager, suppress

import numpy as np
from hypothesis import strategies as st

from weft.replay.server import Server, connect, wire
from weft.replay.server.frame_header import Limits, WireError
from weft.replay.table import Table

SIGNATURE = {"obs": {"vector": np.zeros(3, np.float32), "image": np.zeros((2, 2), np.uint8)}, "reward": np.float32(0)}


def steps(n, start=0):
    """n steps with the rewards start, start + 1, ..."""
    reward = np.arange(start, start + n, dtype=np.float32)
    vector = reward[:, None] + np.zeros((n, 3), np.float32)
    return {"obs": {"vector": vector, "image": np.full((n, 2, 2), start % 256, np.uint8)}, "reward": reward}


def table(capacity=1000, **options):
    return Table(SIGNATURE, **{"capacity": capacity, "name": "a", **options})


@contextmanager
def served(*tables, **options):
    """A server of these tables and a client of the server."""
    with Server(tables or [table()]) as server, connect(server.address, server.token, **options) as client:
        yield server, client


def authenticated_socket(server):
    """A raw connection that has sent the token, and the server's reply."""
    host, _, port = server.address.rpartition(":")
    connection = socket.create_connection((host, int(port)), timeout=10)
    wire.send(connection, wire.encode({"id": 0, "method": "hello", "token": server.token, "client": "x"}, {}))
    return connection, wire.receive(connection, Limits())


class LossyProxy:
    """Forwards frames between clients and a server, and closes the connection instead of forwarding some replies."""

    def __init__(self, address, lost_replies):
        host, _, port = address.rpartition(":")
        self.target = (host, int(port))
        self.lost_replies = lost_replies
        """Numbers of the replies to lose, counted over all connections. The welcome messages are not counted."""
        self.reply_count = 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.sockets, self.threads = [self.listener], []
        self.start_thread(self.accept)

    def start_thread(self, target, *args):
        self.threads.append(threading.Thread(target=target, args=args, daemon=True))
        self.threads[-1].start()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            server = socket.create_connection(self.target)
            self.sockets += [client, server]
            self.start_thread(self.forward_requests, client, server)
            self.start_thread(self.forward_replies, server, client)

    def forward_requests(self, client, server):
        try:
            while data := client.recv(1 << 16):
                server.sendall(data)
        except OSError:
            pass
        shut_down(client, server)

    def forward_replies(self, server, client):
        is_welcome = True
        try:
            while (message := wire.receive(server, Limits())) is not None:
                self.reply_count += not is_welcome
                if not is_welcome and self.reply_count in self.lost_replies:
                    break
                is_welcome = False
                wire.send(client, wire.encode(message.head, message.arrays))
        except (OSError, WireError):
            pass
        shut_down(client, server)

    def close(self):
        shut_down(self.listener)
        self.threads[0].join()
        shut_down(*self.sockets)
        for thread in self.threads:
            thread.join()
        for each in self.sockets:
            each.close()


def shut_down(*sockets):
    for each in sockets:
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


def identical(left, right):
    """Whether nested arrays have equal values and dtypes."""
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(identical(left[name], right[name]) for name in left)
    if isinstance(left, tuple):
        return len(left) == len(right) and all(map(identical, left, right))
    return np.array_equal(left, right) and np.asarray(left).dtype == np.asarray(right).dtype


CALLS = st.lists(
    st.one_of(
        st.tuples(st.just("insert"), st.integers(1, 6)),
        st.tuples(st.just("sample"), st.integers(1, 40)),
        st.tuples(st.just("update"), st.integers(0, 100)),
        st.tuples(st.just("delete"), st.integers(0, 100)),
        st.tuples(st.just("items"), st.integers(0, 100)),
        st.tuples(st.just("reset"), st.just(0)),
    ),
    max_size=25,
)


def call_all(table, calls):
    """Calls the table's methods in order, with keys of earlier results; returns all results."""
    results, keys = [], np.zeros(1, np.uint64)
    for count, (method, size) in enumerate(calls):
        some = keys[size % len(keys) :][:5]
        if method == "insert":
            keys = np.concatenate([keys, table.insert(steps(size, count), np.arange(size) + 0.5)])
            results.append(keys)
        elif method == "sample" and table.size:
            results.append(table.sample(size, timeout=5))
        elif method == "update":
            results.append(table.update(some, np.full(len(some), size + 1.0)))
        elif method == "delete":
            results.append(table.delete(some))
        elif method == "items":
            results.append((table.items(), table.items(some)))
        elif method == "reset":
            results.append(table.reset())
    return results
