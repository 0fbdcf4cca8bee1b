"""A connection to a server, on the client's side. Requests are sent, and replies are received in any order.

The connection has no thread of its own. A thread that waits for a reply reads frames until the reply arrives, and
stores other threads' replies for them; one thread reads at a time. If the socket's send buffer is full, the sending
thread reads replies meanwhile. Otherwise client and server could wait for each other, both with full send buffers.
"""

import contextlib
import select
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from weft.errors import WeftError
from weft.replay.server import compression, wire
from weft.replay.server.frame_header import Limits, WireError
from weft.replay.server.shared_memory import Lease, Segment, SegmentPool
from weft.replay.server.sockets import connect_tcp, connect_unix, host_id

LARGE_PAYLOAD = 1 << 20
"""Bytes from which a payload is received into reusable memory."""


class Rejected(WeftError):
    """The server refused the connection, for example because of a wrong token. Reconnecting does not help."""


class ConnectionLost(ConnectionError):
    """The connection is lost. Unanswered requests can be sent again on a new connection."""


class ClientConnection:
    """An authenticated connection and its requests in flight. Thread-safe."""

    def __init__(
        self,
        address: str,
        token: str,
        client: str,
        *,
        pool: SegmentPool | None,
        share_memory: bool,
        compress: bool,
        timeout: float,
    ) -> None:
        self.pool = pool
        self.hello = {
            "id": 0,
            "method": "hello",
            "token": token,
            "client": client,
            "lz4": compression.AVAILABLE and compress,
        }
        self.socket, self.welcome = _open_tcp(address, self.hello, max(timeout, 0.1))
        self.is_local = share_memory and pool is not None and self._switch_to_unix()
        compresses = self.hello["lz4"] and self.welcome.get("lz4") and not self.is_local
        self.compressor = compression.compressor_for(self.socket.getpeername()[0]) if compresses else None
        self.send_lock, self.condition = threading.Lock(), threading.Condition()
        self.reading = self.is_lost = False
        self.replies: dict[int, wire.Message] = {}
        """Replies that no thread has picked up yet, by request number."""
        self.cancelled: set[int] = set()
        """Numbers of cancelled requests. Their replies are discarded."""
        self.shared_segments: set[int] = set()
        """Numbers of the segments that the server has mapped."""
        self.leases: dict[int, Lease] = {}
        """The memory leased for replies in flight, by segment number."""
        self.limits = Limits()

    def send(
        self,
        head: Mapping[str, Any],
        arrays: Mapping[str, np.ndarray | wire.SharedArray],
        reply_lease: Lease | None = None,
        request_lease: Lease | None = None,
    ) -> None:
        """Sends a request. `request_lease` holds its shared arrays; the server may write the reply to `reply_lease`."""
        try:
            with self.send_lock:
                if self.is_local and self.pool is not None:
                    dropped = self.pool.dropped
                    head = {**head, "forget": [dropped.popleft() for _ in range(len(dropped))]}
                if request_lease is not None:
                    self._share(request_lease.segment)
                if reply_lease is not None:
                    self._share(reply_lease.segment)
                    self.leases[reply_lease.segment.number] = reply_lease
                    head = {**head, "into": reply_lease.segment.number}
                buffers = wire.encode(head, arrays, self.compressor)
                began = time.perf_counter()
                self._send(buffers)
                if self.compressor is not None:
                    self.compressor.record_send(sum(map(len, buffers)), time.perf_counter() - began)
        except OSError as error:
            self.close()
            raise ConnectionLost(str(error)) from error

    def wait(self, number: int) -> wire.Message:
        """Waits for the reply to a request and returns it."""
        while True:
            with self.condition:
                self.condition.wait_for(lambda: number in self.replies or self.is_lost or not self.reading)
                if number in self.replies:
                    return self.replies.pop(number)
                if self.is_lost:
                    raise ConnectionLost("the connection is lost")
                self.reading = True
            self._read()

    def cancel(self, number: int) -> None:
        """Discards the reply to a request."""
        with self.condition:
            if self.replies.pop(number, None) is None:
                self.cancelled.add(number)

    def close(self) -> None:
        with self.condition:
            self.is_lost = True
            self.condition.notify_all()
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        # The shutdown ends all sends and reads. The file is closed after them, because its number may be used again.
        with self.send_lock, self.condition:
            self.condition.wait_for(lambda: not self.reading)
            self.socket.close()
            self.leases.clear()

    def _read(self) -> None:
        """Reads one frame, after the caller has set `reading`."""
        message = None
        try:
            message = wire.receive(self.socket, self.limits, self._find_shared, allocate=self._allocate)
        except (OSError, WireError):
            pass  # The connection is marked as lost below.
        finally:
            # Also after KeyboardInterrupt: the rest of the frame was not read, so the next frame cannot be found.
            with self.condition:
                self.reading = False
                if message is not None and type(message.head.get("id")) is int:
                    self._store(message.head["id"], message)
                else:
                    self.is_lost = True
                self.condition.notify_all()

    def _allocate(self, size: int) -> np.ndarray:
        """Returns memory for a payload: reusable memory if it is large, because new memory costs as much as a copy."""
        lease = self.pool.lease(size) if self.pool is not None and size >= LARGE_PAYLOAD else None
        return np.empty(size, np.uint8) if lease is None else lease.array[:size]

    def _store(self, number: int, reply: wire.Message) -> None:
        self.leases.pop(reply.head.get("into") or 0, None)
        if number in self.cancelled:
            self.cancelled.discard(number)
        else:
            self.replies[number] = reply

    def _find_shared(self, number: int, offset: int, size: int) -> np.ndarray:
        lease = self.leases.get(number)
        if lease is None:
            raise WireError("received a reply that is outside the memory leased for it")
        return lease.read(number, offset, size)

    def _send(self, buffers: list[wire.Buffer]) -> None:
        """Sends a whole frame; reads replies while the send buffer is full."""
        views = [memoryview(buffer) for buffer in buffers]
        while views:
            try:
                sent = self.socket.sendmsg(views[: wire.MAX_BUFFERS], (), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            except BlockingIOError:
                self._read_or_wait_to_send()
                continue
            wire.drop_sent(views, sent)

    def _read_or_wait_to_send(self) -> None:
        readable, _, _ = select.select([] if self.reading else [self.socket], [self.socket], [], 0.1)
        if readable:
            with self.condition:
                if self.reading or self.is_lost:
                    return
                self.reading = True
            self._read()

    def _share(self, segment: Segment) -> None:
        """Sends the segment's file to the server, once."""
        if segment.number not in self.shared_segments:
            frame = b"".join(wire.encode({"id": 0, "method": "segment", "segment": segment.number}, {}))
            socket.send_fds(self.socket, [frame], [segment.file])
            self.shared_segments.add(segment.number)

    def _switch_to_unix(self) -> bool:
        """Replaces the TCP connection by one to the server's Unix socket; returns false if it is on another host."""
        name = self.welcome.get("local")
        if not isinstance(name, str) or self.welcome.get("host") != host_id():
            return False
        try:
            local = connect_unix(name)
        except OSError:
            return False
        try:
            self.welcome = _authenticate(local, self.hello)
        except (OSError, WeftError):
            local.close()
            return False
        self.socket.close()
        self.socket = local
        return True


def _open_tcp(address: str, hello: dict[str, Any], timeout: float) -> tuple[socket.socket, dict[str, Any]]:
    connection = connect_tcp(address, timeout)
    try:
        welcome = _authenticate(connection, hello)
    except BaseException:
        connection.close()
        raise
    connection.settimeout(None)
    return connection, welcome


def _authenticate(connection: socket.socket, hello: dict[str, Any]) -> dict[str, Any]:
    """Sends the token; returns the server's welcome message."""
    wire.send(connection, wire.encode(hello, {}))
    message = wire.receive(connection, Limits(frame=0))
    if message is None:
        raise ConnectionLost("the server closed the connection")
    if "error" in message.head:
        raise Rejected(str(message.head["error"]))
    return message.head
