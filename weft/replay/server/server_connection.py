"""One client's connection, on the server's side.

The connection's thread reads requests, executes them and replies. A request that has to wait for a limiter continues in
a thread of its own, so that the requests behind it are not delayed. Replies carry their request's number and may come
in any order. An invalid frame ends this connection, after an error reply if one can still be sent, and no other.
"""

import contextlib
import hmac
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from weft.errors import WeftError
from weft.replay.server import compression, shared_memory, wire
from weft.replay.server.arena import Arena, arena_bytes
from weft.replay.server.frame_header import Limits, WireError
from weft.replay.server.protocol import Reply, Request
from weft.replay.server.request_handler import RequestHandler, WouldBlock
from weft.replay.server.sockets import configure_tcp, host_id
from weft.replay.server.token import VARIABLE

MAX_WAITING = 256
"""Requests of one connection that may wait at once."""
TOKEN_SECONDS = 10.0
"""Seconds in which a client must send the token."""
SEND_SECONDS = 60
"""Seconds after which a connection is closed if its client does not read a reply."""
LARGE_REPLY = 1 << 20
"""Bytes from which a reply is built in reusable memory."""


class ServerResources(NamedTuple):
    """The parts of a server that its connections use."""

    handler: RequestHandler
    token: str
    limits: Limits
    pool: shared_memory.SegmentPool | None
    """Memory for large replies that are sent through a socket."""
    unix_name: str | None
    """Name of the Unix socket for clients on this host."""


class ServerConnection:
    """A connection that the server has accepted."""

    def __init__(self, server: ServerResources, accepted: socket.socket) -> None:
        self.server, self.socket = server, accepted
        self.is_local = accepted.family == socket.AF_UNIX
        self.send_lock = threading.Lock()
        self.waiting_slots = threading.Semaphore(MAX_WAITING)
        self.compressor: compression.Compressor | None = None
        self.segments: dict[int, shared_memory.Segment] = {}
        """Segments that the client has shared, by number."""
        self.received_files: list[int] = []
        self.client = ""
        self.is_open = True

    def serve(self) -> None:
        """Executes requests until the connection ends."""
        try:
            if self._authenticate():
                while self.is_open and self._handle_next():
                    pass
        except WireError as error:
            self._send({"id": None, "error": str(error)})
        except OSError:
            pass  # The connection was lost.
        finally:
            self.close()
            self._release()

    def close(self) -> None:
        """Ends the connection; its thread then releases its resources."""
        self.is_open = False
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def _release(self) -> None:
        with self.send_lock:
            self.socket.close()
            for segment in self.segments.values():
                segment.close()
            for file in self.received_files:
                os.close(file)
            self.segments, self.received_files = {}, []

    def _authenticate(self) -> bool:
        """Checks the token in the first frame and replies; returns whether it was correct."""
        if not self.is_local:
            configure_tcp(self.socket)
        self.socket.settimeout(TOKEN_SECONDS)
        message = wire.receive(self.socket, wire.UNAUTHENTICATED)
        head = {} if message is None else message.head
        if not hmac.compare_digest(str(head.get("token")).encode(), self.server.token.encode()):
            self._send(
                {"id": 0, "error": f"wrong token: pass the server's token to `connect`, or set {VARIABLE} to it"}
            )
            return False
        self.client = str(head.get("client"))[:64]
        self.socket.settimeout(None)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", SEND_SECONDS, 0))
        if head.get("lz4") is True and compression.AVAILABLE and not self.is_local:
            self.compressor = compression.compressor_for(self.socket.getpeername()[0])
        welcome = {"id": 0, "lz4": compression.AVAILABLE, "host": host_id(), "local": self.server.unix_name}
        return self._send({**welcome, "tables": self.server.handler.describe_tables()})

    def _handle_next(self) -> bool:
        """Handles one request; returns false if the client closed the connection."""
        message = wire.receive(self.socket, self.server.limits, self._find_shared, self._receive_prefix())
        if message is None:
            return False
        head = message.head
        self._drop_segments(head.get("forget"))
        if head.get("method") == "segment":
            self._add_segment(head.get("segment"))
            return True
        segment = head["into"] if type(head.get("into")) is int else None
        request = Request.parse(self.client, message)
        request = request._replace(arena=self._reply_arena(request, segment))
        try:
            self._reply(request, segment, lambda: self.server.handler.handle(request, wait=False))
        except WouldBlock:
            if self.waiting_slots.acquire(blocking=False):
                thread = threading.Thread(target=self._wait, args=(request, segment), daemon=True, name="weft-replay")
                thread.start()
            else:
                error = f"{MAX_WAITING} requests of this client wait already: send fewer at once"
                self._send({"id": request.number, "into": segment, "error": error})
        return True

    def _wait(self, request: Request, segment: int | None) -> None:
        try:
            handle = self.server.handler.handle
            self._reply(request, segment, lambda: handle(request, connected=lambda: self.is_open))
        except WouldBlock:
            pass  # The client has disconnected.
        finally:
            self.waiting_slots.release()

    def _reply(self, request: Request, segment: int | None, execute: Callable[[], Reply]) -> None:
        """Executes a request and sends its reply, in the segment that the client has leased for it if there is one."""
        try:
            reply = execute()
        except WouldBlock:
            raise
        except Exception as error:  # noqa: BLE001, a failing request must not affect other clients
            text = str(error) if isinstance(error, WeftError) else f"the request failed: {error!r}"
            self._send({"id": request.number, "into": segment, "error": text})
            return
        head = {"id": request.number, "into": segment, "result": reply.result}
        arrays: Mapping[str, Any] = reply.arrays
        if self.is_local and arrays:
            head["span"] = arena_bytes(arrays)
            if segment in self.segments and request.arena is not None:
                arrays = request.arena.locate(arrays, segment)
        self._send(head, arrays)

    def _reply_arena(self, request: Request, segment: int | None) -> Arena | None:
        """Returns the memory for a reply's arrays: the client's segment or, for a large reply, reusable memory."""
        if segment in self.segments:
            return Arena(self.segments[segment].memory)
        pool = self.server.pool
        size = self.server.handler.reply_bytes(request) if pool is not None else 0
        lease = pool.lease(size) if pool is not None and size >= LARGE_REPLY else None
        return None if lease is None else Arena(lease.array)

    def _send(self, head: dict[str, Any], arrays: Mapping[str, Any] | None = None) -> bool:
        """Sends a frame; returns false if the connection is lost."""
        try:
            with self.send_lock:
                buffers = self._encode(head, arrays or {})
                began = time.perf_counter()
                wire.send(self.socket, buffers)
                if self.compressor:
                    self.compressor.record_send(sum(map(len, buffers)), time.perf_counter() - began)
            return True
        except OSError:
            self.close()
            return False

    def _encode(self, head: dict[str, Any], arrays: Mapping[str, Any]) -> list[wire.Buffer]:
        try:
            return wire.encode(head, arrays, self.compressor)
        except WeftError as error:  # A pipeline's result may have a dtype that cannot be sent.
            return wire.encode({"id": head["id"], "into": head.get("into"), "error": str(error)}, {})

    def _receive_prefix(self) -> bytes | None:
        """On a Unix socket, returns the next frame's prefix and stores the file that may come with it."""
        if not self.is_local:
            return None
        prefix = b""
        while len(prefix) < wire.PREFIX.size:
            part, files, _, _ = socket.recv_fds(self.socket, wire.PREFIX.size - len(prefix), 1)
            self.received_files += files
            if len(self.received_files) > 1:
                raise WireError("received an unexpected file")
            if not part and prefix:
                raise WireError("the connection ended within a frame")
            if not part:
                return b""
            prefix += part
        return prefix

    def _add_segment(self, number: Any) -> None:
        """Maps the segment that was received as a file with this frame."""
        if (
            type(number) is not int
            or number < 1
            or len(self.received_files) != 1
            or len(self.segments) >= 2 * shared_memory.MAX_SEGMENTS
        ):
            raise WireError("received a segment without a number or a file, or too many segments")
        segment = shared_memory.Segment.from_file(self.received_files[0], number, self.server.limits.frame)
        self.received_files.clear()
        if number in self.segments:
            segment.close()
            raise WireError(f"received segment {number} twice")
        self.segments[number] = segment

    def _drop_segments(self, numbers: Any) -> None:
        for number in numbers if isinstance(numbers, list) else ():
            segment = self.segments.pop(number, None) if type(number) is int else None
            if segment is not None:
                segment.close()

    def _find_shared(self, number: int, offset: int, size: int) -> Any:
        if number not in self.segments:
            raise WireError(f"received an array in segment {number}, which the client has not shared")
        return self.segments[number].read(offset, size)
