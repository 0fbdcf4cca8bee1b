"""A server of tables: `Server(tables)` in a program, or the command `weft replay serve`.

The server listens on a TCP address, by default on the loopback interface only. On Linux it also listens on an abstract
Unix socket: a client that can connect to it is on the same host, and can share memory. The first frame on a connection
must contain the token. Every connection has a thread of its own (see `server_connection`).
"""

import contextlib
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from weft.replay.server import shared_memory
from weft.replay.server.frame_header import Limits
from weft.replay.server.request_handler import RequestHandler
from weft.replay.server.server_connection import ServerConnection, ServerResources
from weft.replay.server.sockets import listen_tcp, listen_unix
from weft.replay.server.token import VARIABLE
from weft.replay.table import Table

MAX_CONNECTIONS = 1024


class Server:
    """Serves tables to other processes until `close`."""

    def __init__(
        self,
        tables: "Iterable[Table] | RequestHandler",
        address: str = "127.0.0.1:0",
        *,
        token: str | None = None,
        limits: Limits | None = None,
    ) -> None:
        """Starts to listen; port 0 chooses a free port.

        The token is, by default, the value of the environment variable WEFT_REPLAY_TOKEN, or a random one.
        """
        self.handler = tables if isinstance(tables, RequestHandler) else RequestHandler(tables, limits=limits)
        self.token = token or os.environ.get(VARIABLE) or secrets.token_urlsafe(24)
        self.unix_name = f"weft-replay-{secrets.token_hex(16)}" if shared_memory.AVAILABLE else None
        self.pool = shared_memory.SegmentPool() if shared_memory.AVAILABLE else None
        self.connections: set[ServerConnection] = set()
        self.closing = False
        self.listeners = [listen_tcp(address)] + ([listen_unix(self.unix_name)] if self.unix_name else [])
        host, port = self.listeners[0].getsockname()[:2]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._resources = ServerResources(self.handler, self.token, limits or Limits(), self.pool, self.unix_name)
        for listener in self.listeners:
            _start_thread(self._accept, listener)

    def close(self) -> None:
        """Stops listening and ends all connections. The tables keep their contents."""
        self.closing = True
        for listener in self.listeners:
            # Closing the socket does not wake a thread that is blocked in accept(); shutting it down does.
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
                    time.sleep(0.05)  # For example, too many files are open. Try again when connections have ended.
                continue
            if len(self.connections) >= MAX_CONNECTIONS:
                accepted.close()
                continue
            connection = ServerConnection(self._resources, accepted)
            self.connections.add(connection)
            _start_thread(self._serve, connection)

    def _serve(self, connection: ServerConnection) -> None:
        try:
            connection.serve()
        finally:
            self.connections.discard(connection)


def _start_thread(target: Callable[..., None], *args: Any) -> None:
    threading.Thread(target=target, args=args, daemon=True, name="weft-replay").start()
