"""The tables of a server, used as if they were here.

`connect(address)` gives a `Client`, and `client.table(name)` something with the methods of `Table`. Calls may come from
several threads. Where the connection breaks, a client connects again and repeats what was not answered, for `patience`
seconds; each request has a number, and a server remembers what it answered, so what changes a table is done once,
however often it is asked. A sample that was lost on the way is drawn anew: of a queue, the items of the lost one are
gone.

On one host, arrays come through shared memory, and the arrays of a sample are where the server wrote them: they
stay as they are for as long as somebody has them, and their memory is used again afterwards.
"""

import itertools
import secrets
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from weft.errors import WeftError, unknown
from weft.replay.pipeline import Pipeline
from weft.replay.server import shared as sharing
from weft.replay.server import wire
from weft.replay.server.link import Broken, Link
from weft.replay.server.remote import RemoteTable
from weft.replay.server.remote_store import RemoteStore
from weft.replay.server.token import find_token

PATIENCE = 10.0
"""Seconds for which a server that does not answer is tried again."""
PAUSE = 0.05
LARGE = 1 << 16
"""Bytes from which arrays of a request go through shared memory."""


@dataclass
class Ticket:
    """A request that is under way."""

    head: dict[str, Any]
    arrays: Mapping[str, np.ndarray]
    room: tuple[Any, ...] | None = None
    """For requests whose replies are alike, what they have in common: memory for the next is lent with it."""
    link: Link | None = None
    """The connection that it was sent on last."""
    holding: sharing.Lease | None = None


class Client:
    """A connection to one server, made anew whenever it breaks."""

    def __init__(
        self, address: str, token: str, *, shared: bool = True, compress: bool = True, patience: float = PATIENCE
    ) -> None:
        self.address, self.patience = address, patience
        self.name = secrets.token_hex(16)
        self.numbers = itertools.count(1)
        self.pool = sharing.Pool() if sharing.AVAILABLE else None
        self.closed = False
        self._token, self._shared, self._compress = token, shared, compress
        self._lock, self._lock_stores = threading.Lock(), threading.Lock()
        self._link: Link | None = None
        self._spans: dict[Any, int] = {}
        self._stores: dict[int, RemoteStore] = {}
        self.call("ping")

    @property
    def local(self) -> bool:
        """Whether memory is shared with the server."""
        return self._link is not None and self._link.local

    @property
    def tables(self) -> dict[str, Any]:
        """What the server said of its tables when it was connected to: their columns and lengths."""
        return self._connected().welcome["tables"]

    def table(self, name: str, signature: Any = None, *, pipeline: Pipeline | None = None) -> RemoteTable:
        """A table of the server; samples have the form of `signature`, or of nested dictionaries if none is given.

        The server does to every batch what `pipeline` says, before it is sent.
        """
        tables = self.tables
        if name not in tables:
            raise unknown("table", name, tables)
        return RemoteTable(self, name, tables[name], signature, pipeline)

    def store(self, table: str) -> RemoteStore:
        """The store of a table, for a writer: one for all tables that share it."""
        described = self.tables[table]
        with self._lock_stores:
            if described["store"] not in self._stores:
                self._stores[described["store"]] = RemoteStore(self, table, described)
            return self._stores[described["store"]]

    def ping(self) -> None:
        """Come back when the server has answered."""
        self.call("ping")

    def checkpoint(self) -> str:
        """Have the server write a checkpoint of all its tables, and say where it is."""
        return self.call("checkpoint").head["result"]["path"]

    def close(self) -> None:
        self.closed = True
        with self._lock:
            if self._link is not None:
                self._link.close()
            if self.pool is not None:
                self.pool.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(
        self, method: str, table: str = "", args: Mapping[str, Any] | None = None, arrays: wire.Arrays | None = None
    ) -> wire.Message:
        """Ask, and wait for the answer."""
        return self.finish(self.begin(method, table, args or {}, arrays or {}))

    def begin(
        self,
        method: str,
        table: str,
        args: Mapping[str, Any],
        arrays: wire.Arrays,
        room: tuple[Any, ...] | None = None,
    ) -> Ticket:
        """Ask; the answer is waited for by `finish`."""
        head = {"id": next(self.numbers), "method": method, "table": table, "args": args}
        ticket = Ticket(head, arrays, room)
        try:
            self._send(ticket)
        except OSError:
            ticket.link = None
        return ticket

    def finish(self, ticket: Ticket) -> wire.Message:
        """The answer to a request, which is repeated for as long as it takes and patience lasts."""
        deadline = None
        while True:
            try:
                if ticket.link is None:
                    self._send(ticket)
                assert ticket.link is not None
                message = ticket.link.wait(ticket.head["id"])
                break
            except OSError as error:
                ticket.link = None
                deadline = deadline or time.monotonic() + self.patience
                self._pause(deadline, error)
        ticket.holding = None
        if "error" in message.head:
            raise WeftError(str(message.head["error"]))
        if "span" in message.head and ticket.room is not None:
            self._spans[ticket.room] = message.head["span"]
        return message

    def drop(self, ticket: Ticket) -> None:
        """Nobody wants the answer any more."""
        if ticket.link is not None:
            ticket.link.forget(ticket.head["id"])

    def _pause(self, deadline: float, error: OSError) -> None:
        if self.closed:
            raise WeftError(f"the client of {self.address} is closed")
        if time.monotonic() > deadline:
            raise WeftError(
                f"the server at {self.address} has not answered for {self.patience:g} s ({error}): is it running there?"
            ) from error
        time.sleep(PAUSE)

    def _send(self, ticket: Ticket) -> None:
        link = self._connected()
        arrays: Mapping[str, Any] = ticket.arrays
        lease = None
        if link.local and link.pool is not None:
            size = self._spans.get(ticket.room, 0)
            lease = link.pool.lease(size) if size >= LARGE else None
            arrays = self._through_memory(ticket, link.pool)
        ticket.link = link
        link.send(ticket.head, arrays, lease, ticket.holding)

    def _through_memory(self, ticket: Ticket, pool: sharing.Pool) -> Mapping[str, Any]:
        """The arrays of a request: laid out in a segment where that is worth it."""
        size = sharing.span(ticket.arrays)
        ticket.holding = pool.lease(size) if size >= LARGE else None
        return ticket.arrays if ticket.holding is None else sharing.lay_out(ticket.arrays, ticket.holding.segment)

    def _connected(self) -> Link:
        with self._lock:
            if self.closed:
                raise WeftError(f"the client of {self.address} is closed")
            if self._link is not None and self._link.broken:
                self._link.close()
                self._link = None
                if self.pool is not None:
                    # The server may still write to what was lent on the old connection, so none of it is lent again.
                    self.pool.close()
                    self.pool = sharing.Pool(self.pool.most)
            if self._link is None:
                how = {"pool": self.pool, "share": self._shared, "pack": self._compress, "patience": self.patience}
                self._link = Link(self.address, self._token, self.name, **how)
            return self._link


def connect(
    address: str | list[str],
    token: str | None = None,
    *,
    token_file: str | Path | None = None,
    shared: bool = True,
    compress: bool = True,
    patience: float = PATIENCE,
) -> Any:
    """A client of the server at `address`; of several addresses, one whose tables are spread over all of them.

    The token is the one given, or that of `token_file`, or of the environment variable WEFT_REPLAY_TOKEN.
    """
    secret = find_token(token, token_file)
    options = {"shared": shared, "compress": compress, "patience": patience}
    if isinstance(address, str):
        return Client(address, secret, **options)
    from weft.replay.server.shards import Shards

    return Shards([Client(each, secret, **options) for each in address])


__all__ = ["Broken", "Client", "Ticket", "connect"]
