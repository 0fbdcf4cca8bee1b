"""A table of a server, with the methods of one that is here.

Arrays cross under names: those of a step as `data/` and the column's name, all others by what they are.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.replay.items import Info, Items, Sample
from weft.replay.limiter import Limiter
from weft.replay.nested import Structure, by_name
from weft.replay.pipeline import Pipeline
from weft.replay.server import wire
from weft.replay.server.calls import DATA, LIMITER
from weft.replay.server.remote_store import RemoteStore

if TYPE_CHECKING:
    from weft.replay.server.client import Client, Ticket


class RemoteTable:
    """One table of a server."""

    def __init__(
        self,
        client: "Client",
        name: str,
        described: Mapping[str, Any],
        signature: Any = None,
        pipeline: Pipeline | None = None,
    ) -> None:
        self.client, self.name, self.described = client, name, described
        self._through = {} if pipeline is None else {"pipeline": pipeline.to_json()}
        self.structure = None if signature is None else Structure(signature)
        self._given: Structure | None = self.structure
        self._store: RemoteStore | None = None

    @property
    def length(self) -> int:
        """The most steps that an item has."""
        return self.described["length"]

    @property
    def store(self) -> RemoteStore:
        """Where a writer appends steps."""
        if self._store is None:
            self._store = self.client.store(self.name)
        return self._store

    def insert(self, steps: Any, priority: Any = None, timeout: float | None = None) -> np.ndarray:
        """Each step as an item of its own; the keys, uint64[n]."""
        arrays = {**self._columns(steps), **_given(priority=priority)}
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
        """Add steps to the store and make items of them, in one request: positions of the steps, keys of the items.

        An item ends with the step number `last` of this call, and has `length` steps of that one's row.
        """
        arrays = {**self._columns(steps), **_given(rows=rows, priority=priority)}
        arrays |= {"last": np.asarray(last, np.int64), "length": np.asarray(length, np.int64)}
        found = self._call("append", {"timeout": timeout}, arrays).arrays
        return found["position"], found["key"]

    def insert_items(self, start: Any, length: Any, priority: Any = None, timeout: float | None = None) -> np.ndarray:
        """Items over steps that are in the store; the keys, uint64[n]."""
        start = np.asarray(start, np.int64).reshape(-1)
        length = np.broadcast_to(np.asarray(length, np.int64), start.shape)
        arrays = _given(start=start, length=length, priority=priority)
        if self._store is not None and self._store.waiting:
            return self._store.flush(self.name, arrays, timeout)
        return self._call("insert_items", {"timeout": timeout}, arrays).arrays["key"]

    def sample(self, n: int, timeout: float | None = None, seed: int | None = None) -> Sample:
        """n items, drawn by the server."""
        return self._sampled(self.begin(n, timeout, seed))

    def samples(self, n: int, ahead: int = 4, timeout: float | None = None) -> Iterator[Sample]:
        """Samples without end; `ahead` of them are under way while one is worked on."""
        under_way: deque[Ticket] = deque()
        try:
            while True:
                while len(under_way) <= ahead:
                    under_way.append(self.begin(n, timeout, None))
                yield self._sampled(under_way.popleft())
        finally:
            for ticket in under_way:
                self.client.drop(ticket)

    def update(self, keys: Any, priorities: Any) -> int:
        """New priorities; how many of the items were there."""
        arrays = {"key": np.asarray(keys, np.uint64), "priority": np.asarray(priorities, np.float64)}
        return self._call("update", {}, arrays).head["result"]["found"]

    def delete(self, keys: Any) -> int:
        return self._call("delete", {}, {"key": np.asarray(keys, np.uint64)}).head["result"]["found"]

    def reset(self) -> None:
        self._call("reset")

    def items(self, keys: Any = None) -> Items:
        """The items of these keys that are there, or all."""
        arrays = {} if keys is None else {"key": np.asarray(keys, np.uint64)}
        return Items(**self._call("items", {}, arrays).arrays)

    def info(self) -> dict[str, Any]:
        return self._call("info").head["result"]

    def mass(self) -> tuple[float, int]:
        """What the probabilities are shares of (the sum of weights), and the number of items."""
        found = self._call("mass").head["result"]
        return found["mass"], found["size"]

    @property
    def limiter(self) -> Limiter:
        found = self._call("limiter").head["result"]
        return Limiter(*(found[name] for name in LIMITER))

    @limiter.setter
    def limiter(self, limiter: Limiter) -> None:
        self._call("set_limiter", {name: getattr(limiter, name) for name in LIMITER})

    @property
    def size(self) -> int:
        return self.mass()[1]

    def _call(self, method: str, args: Mapping[str, Any] | None = None, arrays: wire.Arrays | None = None) -> Any:
        return self.client.call(method, self.name, args, arrays)

    def begin(self, n: int, timeout: float | None, seed: int | None) -> "Ticket":
        """Ask for a sample; `finish` waits for it."""
        args = {"n": int(n), "timeout": timeout, "seed": seed, **self._through}
        return self.client.begin("sample", self.name, args, {}, room=(self.name, int(n), *self._through.values()))

    def _sampled(self, ticket: "Ticket") -> Sample:
        columns, info = self.finish(ticket)
        return Sample(self.nested(columns), info)

    def finish(self, ticket: "Ticket") -> tuple[dict[str, np.ndarray], Info]:
        """The columns of a sample that was begun, and what is known of its items."""
        message = self.client.finish(ticket)
        arrays = message.arrays
        columns = {name[len(DATA) :]: arrays.pop(name) for name in list(arrays) if name.startswith(DATA)}
        return columns, Info(**arrays, table_size=message.head["result"]["table_size"])

    def nested(self, columns: dict[str, np.ndarray]) -> Any:
        """Columns in the form of a step."""
        structure = self.structure
        if structure is not None and set(structure.names) == columns.keys():
            return structure.unflatten([columns[name] for name in structure.names])
        return by_name(list(columns), columns.values())

    def _columns(self, steps: Any) -> dict[str, np.ndarray]:
        """The columns of steps by name; their form is that of the signature, or of the first steps that came."""
        if self._given is None:
            self._given = Structure(steps)
        leaves = self._given.flatten(steps)
        return {DATA + name: np.asarray(leaf) for name, leaf in zip(self._given.names, leaves, strict=True)}


def _given(**arrays: Any) -> dict[str, np.ndarray]:
    return {name: np.asarray(value) for name, value in arrays.items() if value is not None}
