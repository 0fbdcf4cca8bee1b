"""A table of a server, with the methods of a local `Table`."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from weft.replay.items import Info, Items, Sample
from weft.replay.limiter import Limiter
from weft.replay.nested import Structure, by_name
from weft.replay.pipeline import Pipeline
from weft.replay.server import wire
from weft.replay.server.protocol import column_arrays, limiter_args, read_limiter, split_columns
from weft.replay.server.remote_store import RemoteStore
from weft.replay.server.session import PendingRequest, Session


class RemoteTable:
    """One table of a server. Thread-safe."""

    def __init__(
        self,
        session: Session,
        name: str,
        description: Mapping[str, Any],
        open_store: Callable[[str], RemoteStore],
        signature: Any = None,
        pipeline: Pipeline | None = None,
    ) -> None:
        """`open_store` returns the store of the table with the given name; see `Client.table` for the others."""
        self.session, self.name, self.description = session, name, description
        self.structure = None if signature is None else Structure(signature)
        self._open_store = open_store
        self._pipeline = {} if pipeline is None else {"pipeline": pipeline.to_json()}
        self._insert_structure: Structure | None = self.structure
        self._store: RemoteStore | None = None

    @property
    def length(self) -> int:
        """The maximum number of steps of an item."""
        return self.description["length"]

    @property
    def store(self) -> RemoteStore:
        """The store that a writer appends to."""
        if self._store is None:
            self._store = self._open_store(self.name)
        return self._store

    @property
    def size(self) -> int:
        return self.info()["size"]

    @property
    def limiter(self) -> Limiter:
        return read_limiter(self._call("limiter").head["result"])

    @limiter.setter
    def limiter(self, limiter: Limiter) -> None:
        self._call("set_limiter", limiter_args(limiter))

    def insert(self, steps: Any, priority: Any = None, timeout: float | None = None) -> np.ndarray:
        """Inserts every step as an item; returns the keys, uint64[n]."""
        arrays = {**self._columns(steps), **_present(priority=priority)}
        return self._call("insert", {"timeout": timeout}, arrays).arrays["key"]

    def append(
        self,
        steps: Any,
        rows: Any = None,
        *,
        last: Any = (),
        length: Any = (),
        priority: Any = None,
        timeout: float | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Appends steps to the store and inserts items over them, in one request.

        An item ends with the step at index `last` of this call, and has `length` steps of that step's row. Returns the
        positions of the steps and the keys of the items.
        """
        arrays = {**self._columns(steps), **_present(rows=rows, priority=priority)}
        arrays |= {"last": np.asarray(last, np.int64), "length": np.asarray(length, np.int64)}
        reply = self._call("append", {"timeout": timeout}, arrays).arrays
        return reply["position"], reply["key"]

    def insert_items(self, start: Any, length: Any, priority: Any = None, timeout: float | None = None) -> np.ndarray:
        """Inserts items over steps that are in the store; returns the keys, uint64[n]."""
        start = np.asarray(start, np.int64).reshape(-1)
        length = np.broadcast_to(np.asarray(length, np.int64), start.shape)
        arrays = _present(start=start, length=length, priority=priority)
        if self._store is not None and self._store.buffer:
            return self._store.flush(self.name, arrays, timeout)
        return self._call("insert_items", {"timeout": timeout}, arrays).arrays["key"]

    def sample(self, n: int, timeout: float | None = None, seed: int | None = None) -> Sample:
        """Draws n items."""
        return self._finish_nested(self.start_sample(n, timeout, seed))

    def samples(self, n: int, ahead: int = 4, timeout: float | None = None) -> Iterator[Sample]:
        """Yields samples without end; requests `ahead` samples in advance, so that they arrive while one is used."""
        requests: deque[PendingRequest] = deque()
        try:
            while True:
                while len(requests) <= ahead:
                    requests.append(self.start_sample(n, timeout, None))
                yield self._finish_nested(requests.popleft())
        finally:
            for request in requests:
                self.session.cancel(request)

    def start_sample(self, n: int, timeout: float | None, seed: int | None) -> PendingRequest:
        """Requests a sample; `finish_sample` waits for it."""
        args = {"n": int(n), "timeout": timeout, "seed": seed, **self._pipeline}
        size_key = (self.name, int(n), *self._pipeline.values())
        return self.session.start("sample", self.name, args, {}, size_key)

    def finish_sample(self, request: PendingRequest) -> tuple[dict[str, np.ndarray], Info]:
        """Waits for a requested sample; returns its columns by name, and the items' properties."""
        reply = self.session.finish(request)
        columns, info = split_columns(reply.arrays)
        return columns, Info(**info, table_size=reply.head["result"]["table_size"])

    def nest(self, columns: dict[str, np.ndarray]) -> Any:
        """Nests columns as in the signature, if they match it; else as nested dictionaries."""
        structure = self.structure
        if structure is not None and set(structure.names) == columns.keys():
            return structure.unflatten([columns[name] for name in structure.names])
        return by_name(list(columns), columns.values())

    def update(self, keys: Any, priorities: Any) -> int:
        """Sets new priorities; returns the number of items that were found."""
        arrays = {"key": np.asarray(keys, np.uint64), "priority": np.asarray(priorities, np.float64)}
        return self._call("update", {}, arrays).head["result"]["found"]

    def delete(self, keys: Any) -> int:
        """Deletes items; returns the number of items that were found."""
        return self._call("delete", {}, {"key": np.asarray(keys, np.uint64)}).head["result"]["found"]

    def reset(self) -> None:
        self._call("reset")

    def items(self, keys: Any = None) -> Items:
        """Returns the items with these keys that are in the table, or all items."""
        arrays = {} if keys is None else {"key": np.asarray(keys, np.uint64)}
        return Items(**self._call("items", {}, arrays).arrays)

    def info(self) -> dict[str, Any]:
        return self._call("info").head["result"]

    def mass(self) -> tuple[float, int]:
        """Returns the sum of the items' sampling weights, and the number of items."""
        result = self._call("mass").head["result"]
        return result["mass"], result["size"]

    def _call(self, method: str, args: Mapping[str, Any] | None = None, arrays: wire.Arrays | None = None) -> Any:
        return self.session.call(method, self.name, args, arrays)

    def _finish_nested(self, request: PendingRequest) -> Sample:
        columns, info = self.finish_sample(request)
        return Sample(self.nest(columns), info)

    def _columns(self, steps: Any) -> dict[str, np.ndarray]:
        """Returns steps as arrays to send; they must be nested as the signature, or as the first steps inserted."""
        if self._insert_structure is None:
            self._insert_structure = Structure(steps)
        return column_arrays(self._insert_structure, steps)


def _present(**arrays: Any) -> dict[str, np.ndarray]:
    return {name: np.asarray(value) for name, value in arrays.items() if value is not None}
