"""Clients of replay servers. `connect(address).table(name)` has the methods of a local `Table`.

See `session` for what happens when the connection is lost, and for how arrays are transported.
"""

import threading
from pathlib import Path
from typing import Any

from weft.errors import WeftError, unknown
from weft.replay.pipeline import Pipeline
from weft.replay.server.remote_store import RemoteStore
from weft.replay.server.remote_table import RemoteTable
from weft.replay.server.session import PATIENCE, Session
from weft.replay.server.sharded_table import MAX_SHARDS, ShardedTable
from weft.replay.server.token import find_token


class Client:
    """A client of one server. Thread-safe."""

    def __init__(
        self, address: str, token: str, *, shared: bool = True, compress: bool = True, patience: float = PATIENCE
    ) -> None:
        """Connects to the server; see `connect` for the arguments."""
        self.session = Session(address, token, shared=shared, compress=compress, patience=patience)
        self._stores: dict[int, RemoteStore] = {}
        self._stores_lock = threading.Lock()
        self.ping()

    @property
    def local(self) -> bool:
        """Whether memory is shared with the server."""
        return self.session.is_local

    @property
    def tables(self) -> dict[str, Any]:
        """The columns and sizes of the server's tables, by name."""
        return self.session.tables

    def table(self, name: str, signature: Any = None, *, pipeline: Pipeline | None = None) -> RemoteTable:
        """Returns a table of the server.

        Samples are nested as `signature`, or as nested dictionaries if none is given. The server applies `pipeline` to
        every batch before sending it.
        """
        tables = self.tables
        if name not in tables:
            raise unknown("table", name, tables)
        return RemoteTable(self.session, name, tables[name], self.store, signature, pipeline)

    def store(self, table: str) -> RemoteStore:
        """Returns the store of a table, for a writer. Tables that share a store get the same object."""
        description = self.tables[table]
        with self._stores_lock:
            if description["store"] not in self._stores:
                self._stores[description["store"]] = RemoteStore(self.session, table, description)
            return self._stores[description["store"]]

    def ping(self) -> None:
        """Returns when the server has answered."""
        self.session.call("ping")

    def checkpoint(self) -> str:
        """Lets the server write a checkpoint of all its tables; returns its path."""
        return self.session.call("checkpoint").head["result"]["path"]

    def close(self) -> None:
        self.session.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ShardedClient:
    """A client of several servers. It samples their tables as one table (see `sharded_table`)."""

    def __init__(self, clients: list[Client]) -> None:
        if not 1 <= len(clients) <= MAX_SHARDS:
            raise WeftError(f"a table can be spread over 1 to {MAX_SHARDS} servers; given {len(clients)} addresses")
        self.clients = clients

    def table(
        self, name: str, signature: Any = None, *, pipeline: Pipeline | None = None, seed: int | None = None
    ) -> ShardedTable:
        """Returns the table that all servers have under this name. `seed` is for the choice of each item's server."""
        return ShardedTable([client.table(name, signature, pipeline=pipeline) for client in self.clients], seed)

    def ping(self) -> None:
        for client in self.clients:
            client.ping()

    def checkpoint(self) -> list[str]:
        """Lets every server write a checkpoint, one server after the other; returns the paths."""
        return [client.checkpoint() for client in self.clients]

    def close(self) -> None:
        for client in self.clients:
            client.close()

    def __enter__(self) -> "ShardedClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def connect(
    address: str | list[str],
    token: str | None = None,
    *,
    token_file: str | Path | None = None,
    shared: bool = True,
    compress: bool = True,
    patience: float = PATIENCE,
) -> Any:
    """Returns a `Client` of the server at `address`, or a `ShardedClient` of the servers at several addresses.

    The token is `token`, or the content of `token_file`, or the environment variable WEFT_REPLAY_TOKEN. With `shared`,
    arrays go through shared memory if the server is on this host; with `compress`, columns are compressed on a socket
    while that saves time. A server that does not answer is tried for `patience` seconds.
    """
    token = find_token(token, token_file)
    addresses = [address] if isinstance(address, str) else address
    clients = [Client(each, token, shared=shared, compress=compress, patience=patience) for each in addresses]
    return clients[0] if isinstance(address, str) else ShardedClient(clients)
