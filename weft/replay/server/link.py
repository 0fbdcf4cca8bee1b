"""A client's side of one connection: requests go out, replies come back in any order.

There is no thread behind it. Whoever waits for a reply reads frames until it comes, and puts those of others where
they find them; one at a time reads. Whoever sends and finds the way full reads meanwhile, so that a server which waits
to get rid of its replies is never waited for in turn.
"""

import contextlib
import select
import socket
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from weft.errors import WeftError
from weft.replay.server import compress, shared, wire

BOOT = Path("/proc/sys/kernel/random/boot_id")
"""The same for all processes of a host, until it is started anew."""


LARGE = 1 << 20
"""Bytes from which a payload is read into memory that is kept."""


class Refused(WeftError):
    """The server answered, and does not want us: to try again is of no use."""


class Broken(ConnectionError):
    """The connection is gone; what was not answered may be asked again on another."""


def parse_address(address: str) -> tuple[str, int]:
    """Host and port.

    >>> parse_address("127.0.0.1:9000"), parse_address("[::1]:0")
    (('127.0.0.1', 9000), ('::1', 0))
    """
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535 or not host:
        raise WeftError(f"the address {address!r} is not of the form host:port, e.g. 127.0.0.1:9000")
    return host.strip("[]"), int(port)


def host_name() -> str:
    """What tells this host from others; empty where that is not known."""
    try:
        return BOOT.read_text().strip()
    except OSError:
        return ""


class Link:
    """One connection, with the requests that are under way on it."""

    def __init__(
        self,
        address: str,
        token: str,
        client: str,
        *,
        pool: shared.Pool | None,
        share: bool,
        pack: bool,
        patience: float,
    ) -> None:
        self.pool = pool
        self.hello = {"id": 0, "method": "hello", "token": token, "client": client, "lz4": compress.AVAILABLE and pack}
        self.socket, self.welcome = _open_tcp(address, self.hello, patience)
        self.local = share and pool is not None and self._go_local()
        packs = self.hello["lz4"] and self.welcome.get("lz4") and not self.local
        self.packer = compress.packer(self.socket.getpeername()[0]) if packs else None
        self.sending, self.condition = threading.Lock(), threading.Condition()
        self.reading = self.broken = False
        self.arrived: dict[int, wire.Message] = {}
        self.unwanted: set[int] = set()
        self.known: set[int] = set()
        """Segments that the server has been handed."""
        self.lent: dict[int, shared.Lease] = {}
        """By number of segment, what replies under way may be written to."""
        self.limits = wire.Limits()

    def send(
        self,
        head: Mapping[str, Any],
        arrays: Mapping[str, np.ndarray | wire.Placed],
        lease: shared.Lease | None = None,
        holding: shared.Lease | None = None,
    ) -> None:
        """Send a request; the reply may come in what is lent with it, and `holding` has arrays of the request."""
        try:
            with self.sending:
                if self.local and self.pool is not None:
                    head = {**head, "forget": [self.pool.dropped.popleft() for _ in range(len(self.pool.dropped))]}
                if holding is not None:
                    self._hand_over(holding.segment)
                if lease is not None:
                    self._hand_over(lease.segment)
                    self.lent[lease.segment.number] = lease
                    head = {**head, "into": lease.segment.number}
                buffers = wire.encode(head, arrays, self.packer)
                began = time.perf_counter()
                self._send(buffers)
                if self.packer is not None:
                    self.packer.sent(sum(map(len, buffers)), time.perf_counter() - began)
        except OSError as error:
            self.close()
            raise Broken(str(error)) from error

    def wait(self, number: int) -> wire.Message:
        """The reply to a request."""
        while True:
            with self.condition:
                self.condition.wait_for(lambda: number in self.arrived or self.broken or not self.reading)
                if number in self.arrived:
                    return self.arrived.pop(number)
                if self.broken:
                    raise Broken("the connection is gone")
                self.reading = True
            self._read()

    def forget(self, number: int) -> None:
        """Nobody waits for this reply any more."""
        with self.condition:
            if self.arrived.pop(number, None) is None:
                self.unwanted.add(number)

    def close(self) -> None:
        with self.condition:
            self.broken = True
            self.condition.notify_all()
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        # Whoever sends or reads finds it shut and leaves; only then may the number of the file be used again.
        with self.sending, self.condition:
            self.condition.wait_for(lambda: not self.reading)
            self.socket.close()
            self.lent.clear()

    def _read(self) -> None:
        """Read one frame, having said that we are the one who reads."""
        message = None
        try:
            message = wire.receive(self.socket, self.limits, self._find, room=self._room)
        except (OSError, wire.WireError):
            pass
        finally:
            # Also where a signal ends it in the middle of a frame: what follows could not be understood.
            with self.condition:
                self.reading = False
                if message is not None and type(message.head.get("id")) is int:
                    self._put(message.head["id"], message)
                else:
                    self.broken = True
                self.condition.notify_all()

    def _room(self, size: int) -> np.ndarray:
        """Memory for a payload: for a large one, some that was used before; new memory costs as much as a copy."""
        lease = self.pool.lease(size) if self.pool is not None and size >= LARGE else None
        return np.empty(size, np.uint8) if lease is None else lease.array[:size]

    def _put(self, number: int, message: wire.Message) -> None:
        self.lent.pop(message.head.get("into") or 0, None)
        if number in self.unwanted:
            self.unwanted.discard(number)
        else:
            self.arrived[number] = message

    def _find(self, number: int, offset: int, size: int) -> np.ndarray:
        lease = self.lent.get(number)
        if lease is None:
            raise wire.WireError("a reply came that lies where it was not asked to")
        return lease.find(number, offset, size)

    def _send(self, buffers: list[wire.Buffer]) -> None:
        """All of a frame; while the way is full, read what comes."""
        views = [memoryview(buffer) for buffer in buffers]
        while views:
            try:
                sent = self.socket.sendmsg(views[: wire.PIECES], (), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            except BlockingIOError:
                self._make_way()
                continue
            wire.advance(views, sent)

    def _make_way(self) -> None:
        readable, _, _ = select.select([] if self.reading else [self.socket], [self.socket], [], 0.1)
        if readable:
            with self.condition:
                if self.reading or self.broken:
                    return
                self.reading = True
            self._read()

    def _hand_over(self, segment: shared.Segment) -> None:
        if segment.number not in self.known:
            frame = b"".join(wire.encode({"id": 0, "method": "segment", "segment": segment.number}, {}))
            socket.send_fds(self.socket, [frame], [segment.file])
            self.known.add(segment.number)

    def _go_local(self) -> bool:
        """Change over to the server's Unix socket, if it can be reached: then we are on one host."""
        name = self.welcome.get("local")
        if not isinstance(name, str) or self.welcome.get("host") != host_name():
            return False
        local = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            local.connect("\0" + name)
            self.welcome = _greet(local, self.hello)
        except (OSError, WeftError):
            local.close()
            return False
        self.socket.close()
        self.socket = local
        return True


def _open_tcp(address: str, hello: dict[str, Any], patience: float) -> tuple[socket.socket, dict[str, Any]]:
    connection = socket.create_connection(parse_address(address), timeout=max(patience, 0.1))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    try:
        welcome = _greet(connection, hello)
    except BaseException:
        connection.close()
        raise
    connection.settimeout(None)
    return connection, welcome


def _greet(connection: socket.socket, hello: dict[str, Any]) -> dict[str, Any]:
    wire.send(connection, wire.encode(hello, {}))
    message = wire.receive(connection, wire.Limits(frame=0))
    if message is None:
        raise Broken("the server closed the connection")
    if "error" in message.head:
        raise Refused(str(message.head["error"]))
    return message.head
