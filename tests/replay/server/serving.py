"""Tables and servers for tests of what goes over a connection."""

import socket
import threading
from contextlib import contextmanager, suppress

import numpy as np
from hypothesis import strategies as st

from weft.replay.server import Server, wire
from weft.replay.server.client import connect
from weft.replay.table import Table

SIGNATURE = {"obs": {"place": np.zeros(3, np.float32), "seen": np.zeros((2, 2), np.uint8)}, "reward": np.float32(0)}


def steps(n, start=0):
    """n steps that can be told apart by their reward."""
    reward = np.arange(start, start + n, dtype=np.float32)
    place = reward[:, None] + np.zeros((n, 3), np.float32)
    return {"obs": {"place": place, "seen": np.full((n, 2, 2), start % 256, np.uint8)}, "reward": reward}


def table(capacity=1000, **options):
    return Table(SIGNATURE, **{"capacity": capacity, "name": "a", **options})


@contextmanager
def served(*tables, **options):
    """A server of these tables, and a client of it."""
    with Server(tables or [table()]) as server, connect(server.address, server.token, **options) as client:
        yield server, client


def greeted(server, token=None):
    """A bare connection that has shown the token."""
    host, _, port = server.address.rpartition(":")
    connection = socket.create_connection((host, int(port)), timeout=10)
    wire.send(connection, wire.encode({"id": 0, "method": "hello", "token": token or server.token, "client": "x"}, {}))
    return connection, wire.receive(connection, wire.Limits())


class Cutter:
    """Stands between a client and a server, and cuts the connection instead of passing on some of the replies."""

    def __init__(self, address, cuts):
        host, _, port = address.rpartition(":")
        self.target = (host, int(port))
        self.cuts = cuts
        """Replies, counted over all connections without their first, that are lost."""
        self.replies = 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.sockets, self.threads = [self.listener], []
        self.start(self.accept)

    def start(self, target, *args):
        self.threads.append(threading.Thread(target=target, args=args, daemon=True))
        self.threads[-1].start()

    def accept(self):
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            far = socket.create_connection(self.target)
            self.sockets += [near, far]
            self.start(self.forward, near, far)
            self.start(self.back, far, near)

    def forward(self, source, dest):
        try:
            while data := source.recv(1 << 16):
                dest.sendall(data)
        except OSError:
            pass
        shut(source, dest)

    def back(self, source, dest):
        first = True
        try:
            while (message := wire.receive(source, wire.Limits())) is not None:
                self.replies += not first
                if not first and self.replies in self.cuts:
                    break
                first = False
                wire.send(dest, wire.encode(message.head, message.arrays))
        except (OSError, wire.WireError):
            pass
        shut(source, dest)

    def close(self):
        shut(self.listener)
        self.threads[0].join()
        shut(*self.sockets)
        for thread in self.threads:
            thread.join()
        for each in self.sockets:
            each.close()


def shut(*sockets):
    for each in sockets:
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


def alike(left, right):
    """Whether nested arrays are equal, bit for bit."""
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(alike(left[name], right[name]) for name in left)
    if isinstance(left, tuple):
        return len(left) == len(right) and all(map(alike, left, right))
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


def play(target, calls):
    """What a table answers to calls, one after the other; keys of former answers are used."""
    said, keys = [], np.zeros(1, np.uint64)
    for count, (what, size) in enumerate(calls):
        some = keys[size % len(keys) :][:5]
        if what == "insert":
            keys = np.concatenate([keys, target.insert(steps(size, count), np.arange(size) + 0.5)])
            said.append(keys)
        elif what == "sample" and target.size:
            said.append(target.sample(size, timeout=5))
        elif what == "update":
            said.append(target.update(some, np.full(len(some), size + 1.0)))
        elif what == "delete":
            said.append(target.delete(some))
        elif what == "items":
            said.append((target.items(), target.items(some)))
        elif what == "reset":
            said.append(target.reset())
    return said
