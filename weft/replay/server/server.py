"""A server of tables: `Server(tables)` in a program of one's own, or `weft replay serve`.

Every connection has a thread that reads requests, carries them out and answers. A call that has to wait (for a limiter)
goes on in a thread of its own, so that what comes after it on the same connection is answered meanwhile; replies carry
the number of their request and may come in any order. What is not understood ends the connection it came on, after an
error reply where one can still be sent, and nothing else.

The server listens on a TCP address, on the loopback interface unless told otherwise, and where there is sealed memory
also on a Unix socket without a name in any folder: whoever can reach that one is on the same host and may share memory.
On both, the first frame must show the token.
"""

import contextlib
import hmac
import os
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from weft.errors import WeftError
from weft.replay.server import compress, shared, wire
from weft.replay.server.calls import Request
from weft.replay.server.link import host_name, parse_address
from weft.replay.server.service import Blocked, Service
from weft.replay.server.token import VARIABLE
from weft.replay.table import Table

CONNECTIONS = 1024
WAITING = 256
"""Calls of one connection that may wait at once."""
GREETING = 10.0
"""Seconds in which the token must have come."""
LARGE = 1 << 20
"""Bytes from which a reply is put together in memory that is kept for the next."""
STALLED = 60
"""Seconds after which a client that takes nothing of a reply is given up."""


class Server:
    """Tables that other processes may use, from now until `close`."""

    def __init__(
        self,
        tables: "Iterable[Table] | Service",
        address: str = "127.0.0.1:0",
        *,
        token: str | None = None,
        limits: wire.Limits | None = None,
    ) -> None:
        self.service = tables if isinstance(tables, Service) else Service(tables, limits=limits)
        self.token = token or os.environ.get(VARIABLE) or secrets.token_urlsafe(24)
        self.limits = limits or wire.Limits()
        self.closing = False
        self.pool = shared.Pool() if shared.AVAILABLE else None
        """Memory for large replies that leave through a socket."""
        self.connections: set[_Connection] = set()
        self.name = f"weft-replay-{secrets.token_hex(16)}" if shared.AVAILABLE else None
        self.listeners = [_listen(address)] + ([_listen_local(self.name)] if self.name else [])
        host, port = self.listeners[0].getsockname()[:2]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        for listener in self.listeners:
            _start(self._accept, listener)

    def close(self) -> None:
        """Stop listening and end all connections; the tables stay as they are."""
        self.closing = True
        for listener in self.listeners:
            # A thread that is in accept() is woken by this, and not by closing alone.
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        for connection in list(self.connections):
            connection.close()
        if self.pool is not None:
            self.pool.close()

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self, listener: socket.socket) -> None:
        while not self.closing:
            try:
                accepted, _ = listener.accept()
            except OSError:
                if not self.closing:
                    time.sleep(0.05)  # too many files are open, say: others may go
                continue
            if len(self.connections) >= CONNECTIONS:
                accepted.close()
                continue
            connection = _Connection(self, accepted)
            self.connections.add(connection)
            _start(connection.serve)


class _Connection:
    """One client's connection, as the server sees it."""

    def __init__(self, server: Server, accepted: socket.socket) -> None:
        self.server, self.socket = server, accepted
        self.local = accepted.family == socket.AF_UNIX
        self.sending = threading.Lock()
        self.waiting = threading.Semaphore(WAITING)
        self.packer: compress.Packer | None = None
        self.segments: dict[int, shared.Segment] = {}
        self.files: list[int] = []
        self.client = ""
        self.open = True

    def serve(self) -> None:
        try:
            if self._greet():
                while self.open and self._next():
                    pass
        except wire.WireError as error:
            self._answer({"id": None, "error": str(error)})
        except OSError:
            pass
        finally:
            self.close()
            self.server.connections.discard(self)
            self._let_go()

    def close(self) -> None:
        self.open = False
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def _let_go(self) -> None:
        with self.sending:
            self.socket.close()
            for segment in self.segments.values():
                segment.close()
            for file in self.files:
                os.close(file)
            self.segments, self.files = {}, []

    def _greet(self) -> bool:
        """Let nobody in without the token."""
        if not self.local:
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.socket.settimeout(GREETING)
        message = wire.receive(self.socket, wire.GUEST)
        head = {} if message is None else message.head
        if not hmac.compare_digest(str(head.get("token")).encode(), self.server.token.encode()):
            self._answer(
                {"id": 0, "error": f"the token is not this server's: give connect its token, or set {VARIABLE}"}
            )
            return False
        self.client = str(head.get("client"))[:64]
        self.socket.settimeout(None)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", STALLED, 0))
        if head.get("lz4") is True and compress.AVAILABLE and not self.local:
            self.packer = compress.packer(self.socket.getpeername()[0])
        welcome = {"id": 0, "lz4": compress.AVAILABLE, "host": host_name(), "local": self.server.name}
        return self._answer({**welcome, "tables": self.server.service.describe()})

    def _next(self) -> bool:
        """Carry out one request; false at the end."""
        message = wire.receive(self.socket, self.server.limits, self._find, self._prefix())
        if message is None:
            return False
        head = message.head
        self._forget(head.get("forget"))
        if head.get("method") == "segment":
            self._take_segment(head.get("segment"))
            return True
        into = head["into"] if type(head.get("into")) is int else None
        request = Request.of(self.client, message)
        request = request._replace(room=self._room(request, into))
        try:
            self._reply(request, into, lambda: self.server.service.call(request, wait=False))
        except Blocked:
            if self.waiting.acquire(blocking=False):
                _start(self._wait, request, into)
            else:
                self._answer({"id": request.number, "into": into, "error": f"{WAITING} calls wait already: use fewer"})
        return True

    def _wait(self, request: Request, into: Any) -> None:
        try:
            self._reply(request, into, lambda: self.server.service.call(request, alive=lambda: self.open))
        except Blocked:
            pass  # nobody is there any more
        finally:
            self.waiting.release()

    def _reply(self, request: Request, into: Any, call: Callable[[], Any]) -> None:
        try:
            reply = call()
        except Blocked:
            raise
        except Exception as error:  # noqa: BLE001, whatever a request brings about is its sender's alone
            said = str(error) if isinstance(error, WeftError) else f"the request failed: {error!r}"
            self._answer({"id": request.number, "into": into, "error": said})
            return
        head = {"id": request.number, "into": into, "result": reply.result}
        arrays: Mapping[str, Any] = reply.arrays
        if self.local and arrays:
            head["span"] = shared.span(arrays)
            if into in self.segments and request.room is not None:
                arrays = request.room.placed(arrays, into)
        self._answer(head, arrays)

    def _room(self, request: Request, into: int | None) -> shared.Room | None:
        """Where the arrays of the reply go: to the memory lent for it; or, if they are many, to some that is kept."""
        if into in self.segments:
            return shared.Room(self.segments[into].memory)
        size = self.server.service.bytes_of_reply(request) if self.server.pool is not None else 0
        lease = self.server.pool.lease(size) if self.server.pool is not None and size >= LARGE else None
        return None if lease is None else shared.Room(lease.array)

    def _answer(self, head: dict[str, Any], arrays: Mapping[str, Any] | None = None) -> bool:
        """Send a reply; false if nobody takes it."""
        try:
            with self.sending:
                buffers = self._encoded(head, arrays or {})
                began = time.perf_counter()
                wire.send(self.socket, buffers)
                if self.packer:
                    self.packer.sent(sum(map(len, buffers)), time.perf_counter() - began)
            return True
        except OSError:
            self.close()
            return False

    def _encoded(self, head: dict[str, Any], arrays: Mapping[str, Any]) -> list[wire.Buffer]:
        try:
            return wire.encode(head, arrays, self.packer)
        except WeftError as error:  # a pipeline may make what cannot be sent
            return wire.encode({"id": head["id"], "into": head.get("into"), "error": str(error)}, {})

    def _prefix(self) -> bytes | None:
        """On a Unix socket, the start of the next frame together with the file that may come with it."""
        if not self.local:
            return None
        prefix = b""
        while len(prefix) < wire.PREFIX.size:
            part, files, _, _ = socket.recv_fds(self.socket, wire.PREFIX.size - len(prefix), 1)
            self.files += files
            if len(self.files) > 1:
                raise wire.WireError("a file came that nobody asked for")
            if not part and prefix:
                raise wire.WireError("the connection ended within a frame")
            if not part:
                return b""
            prefix += part
        return prefix

    def _take_segment(self, number: Any) -> None:
        if type(number) is not int or number < 1 or len(self.files) != 1 or len(self.segments) >= 2 * shared.SEGMENTS:
            raise wire.WireError("a segment came without a file or number of its own, or one too many")
        segment = shared.Segment.of(self.files[0], number, self.server.limits.frame)
        self.files.clear()
        if number in self.segments:
            segment.close()
            raise wire.WireError(f"segment {number} came twice")
        self.segments[number] = segment

    def _forget(self, numbers: Any) -> None:
        for number in numbers if isinstance(numbers, list) else ():
            segment = self.segments.pop(number, None) if type(number) is int else None
            if segment is not None:
                segment.close()

    def _find(self, number: int, offset: int, size: int) -> Any:
        if number not in self.segments:
            raise wire.WireError(f"a frame came that points to segment {number}, which was not handed over")
        return self.segments[number].part(offset, size)


def _listen(address: str) -> socket.socket:
    host, port = parse_address(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=256)
    except OSError as error:
        raise WeftError(f"cannot listen on {address}: {error.strerror}; choose another address, or port 0") from error


def _listen_local(name: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind("\0" + name)
    listener.listen(256)
    return listener


def _start(target: Callable[..., None], *args: Any) -> None:
    threading.Thread(target=target, args=args, daemon=True, name="weft-replay").start()
