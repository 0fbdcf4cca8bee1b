"""A client's session with one server, which outlives connections.

If the connection is lost, the session reconnects and repeats unanswered requests, for `patience` seconds. Every request
has a number, and the server caches its replies, so a change is executed once, however often it is sent. Samples are not
cached: one that was lost on its way is drawn again, and items that it removed from a queue are lost.

On one host, arrays go through shared memory. The arrays of a sample are views of the memory that the server wrote to;
that memory is reused when all views of it are garbage-collected.
"""

import itertools
import secrets
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.errors import WeftError
from weft.replay.server import shared_memory, wire
from weft.replay.server.arena import Arena, arena_bytes
from weft.replay.server.client_connection import ClientConnection

PATIENCE = 10.0
"""Default seconds for which a session tries to reach a server that does not answer."""
RETRY_SECONDS = 0.05
LARGE = 1 << 16
"""Bytes from which the arrays of a request or a reply go through shared memory."""


@dataclass
class PendingRequest:
    """A request in flight."""

    head: dict[str, Any]
    arrays: Mapping[str, np.ndarray]
    size_key: tuple[Any, ...] | None = None
    """Requests with equal keys get replies of similar size: the last one says how much memory to lease for the next."""
    connection: ClientConnection | None = None
    """The connection that it was sent on last; None before it is sent, and after that connection is lost."""
    lease: shared_memory.Lease | None = None
    """The shared memory of its arrays."""


class Session:
    """Sends requests to one server and receives replies. Thread-safe."""

    def __init__(self, address: str, token: str, *, shared: bool, compress: bool, patience: float) -> None:
        self.address, self.patience = address, patience
        self.name = secrets.token_hex(16)
        self.numbers = itertools.count(1)
        self.pool = shared_memory.SegmentPool() if shared_memory.AVAILABLE else None
        self.closed = False
        self._token, self._shared, self._compress = token, shared, compress
        self._lock = threading.Lock()
        self._connection: ClientConnection | None = None
        self._reply_sizes: dict[tuple[Any, ...], int] = {}
        """The bytes of the last reply, by size key."""

    @property
    def is_local(self) -> bool:
        """Whether memory is shared with the server."""
        return self._connection is not None and self._connection.is_local

    @property
    def tables(self) -> dict[str, Any]:
        """The descriptions of the server's tables, as of the last connection."""
        return self.connection().welcome["tables"]

    def call(
        self, method: str, table: str = "", args: Mapping[str, Any] | None = None, arrays: wire.Arrays | None = None
    ) -> wire.Message:
        """Sends a request and waits for its reply."""
        return self.finish(self.start(method, table, args or {}, arrays or {}))

    def start(
        self,
        method: str,
        table: str,
        args: Mapping[str, Any],
        arrays: wire.Arrays,
        size_key: tuple[Any, ...] | None = None,
    ) -> PendingRequest:
        """Sends a request; `finish` waits for its reply."""
        head = {"id": next(self.numbers), "method": method, "table": table, "args": args}
        request = PendingRequest(head, arrays, size_key)
        try:
            self._send(request)
        except OSError:
            request.connection = None
        return request

    def finish(self, request: PendingRequest) -> wire.Message:
        """Waits for the reply to a request; reconnects and sends the request again if the connection is lost."""
        deadline = None
        while True:
            try:
                if request.connection is None:
                    self._send(request)
                assert request.connection is not None
                reply = request.connection.wait(request.head["id"])
                break
            except OSError as error:
                request.connection = None
                deadline = deadline or time.monotonic() + self.patience
                self._pause(deadline, error)
        request.lease = None
        if "error" in reply.head:
            raise WeftError(str(reply.head["error"]))
        if "span" in reply.head and request.size_key is not None:
            self._reply_sizes[request.size_key] = reply.head["span"]
        return reply

    def cancel(self, request: PendingRequest) -> None:
        """Discards the reply to a request."""
        if request.connection is not None:
            request.connection.cancel(request.head["id"])

    def connection(self) -> ClientConnection:
        """Returns the connection, after opening a new one if there is none or it is lost."""
        with self._lock:
            self._check_open()
            if self._connection is not None and self._connection.is_lost:
                self._connection.close()
                self._connection = None
                if self.pool is not None:
                    # The server may still write to segments leased on the lost connection, so they are not reused.
                    self.pool.close()
                    self.pool = shared_memory.SegmentPool(self.pool.max_bytes)
            if self._connection is None:
                self._connection = ClientConnection(
                    self.address,
                    self._token,
                    self.name,
                    pool=self.pool,
                    share_memory=self._shared,
                    compress=self._compress,
                    timeout=self.patience,
                )
            return self._connection

    def close(self) -> None:
        self.closed = True
        with self._lock:
            if self._connection is not None:
                self._connection.close()
            if self.pool is not None:
                self.pool.close()

    def _check_open(self) -> None:
        if self.closed:
            raise WeftError(f"the client of {self.address} is closed")

    def _pause(self, deadline: float, error: OSError) -> None:
        self._check_open()
        if time.monotonic() > deadline:
            raise WeftError(
                f"the server at {self.address} has not answered for {self.patience:g} s ({error}): is it running there?"
            ) from error
        time.sleep(RETRY_SECONDS)

    def _send(self, request: PendingRequest) -> None:
        connection = self.connection()
        arrays: Mapping[str, Any] = request.arrays
        reply_lease = None
        if connection.is_local and connection.pool is not None:
            size = self._reply_sizes.get(request.size_key, 0) if request.size_key is not None else 0
            reply_lease = connection.pool.lease(size) if size >= LARGE else None
            arrays = self._put_in_shared_memory(request, connection.pool)
        request.connection = connection
        connection.send(request.head, arrays, reply_lease, request.lease)

    def _put_in_shared_memory(self, request: PendingRequest, pool: shared_memory.SegmentPool) -> Mapping[str, Any]:
        """Copies the arrays of a large request to shared memory; returns the arrays to send."""
        size = arena_bytes(request.arrays)
        request.lease = pool.lease(size) if size >= LARGE else None
        if request.lease is None:
            return request.arrays
        segment = request.lease.segment
        return Arena(segment.memory).locate(request.arrays, segment.number)
