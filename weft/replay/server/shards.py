"""One table over several servers, sampled as if it were in one place.

Every server has a table of the same name. An insert goes to the next server in turn, an append to the server of its row
(row r is row r // M of server r % M, of M). A sample first asks all servers for their mass, the sum of their
items' weights, and draws for every item which server it comes from, in proportion to these; each server then draws
among its own. So an item is drawn with the probability that it would have in a single table, and that is what is
reported: the server's share times the probability there. This holds whatever happens in between: the reported
probability is always the one with which the item was drawn.

The key of an item has the number of its server in its top eight bits. Limiters are each server's own.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from weft.errors import WeftError
from weft.replay.items import Info, Items, Sample
from weft.replay.limiter import Limiter
from weft.replay.pipeline import Pipeline
from weft.replay.server.client import Client, Ticket
from weft.replay.server.remote import RemoteTable

SHIFT = np.uint64(56)
LOCAL = np.uint64((1 << 56) - 1)
MOST = 256
PAUSE = 0.01


class Shards:
    """Clients of several servers, as one."""

    def __init__(self, clients: list[Client]) -> None:
        if not 1 <= len(clients) <= MOST:
            raise WeftError(f"a table can be spread over 1 to {MOST} servers; given {len(clients)} addresses")
        self.clients = clients

    def table(
        self, name: str, signature: Any = None, *, pipeline: Pipeline | None = None, seed: int | None = None
    ) -> "ShardedTable":
        """The table of that name on all servers; `seed` is for which server each item of a sample comes from."""
        return ShardedTable([client.table(name, signature, pipeline=pipeline) for client in self.clients], seed)

    def ping(self) -> None:
        for client in self.clients:
            client.ping()

    def checkpoint(self) -> list[str]:
        """A checkpoint of every server, each of its own moment."""
        return [client.checkpoint() for client in self.clients]

    def close(self) -> None:
        for client in self.clients:
            client.close()

    def __enter__(self) -> "Shards":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Draw(NamedTuple):
    """A sample under way: which server each item comes from, each server's share, and what was asked of them."""

    origin: np.ndarray
    shares: np.ndarray
    tickets: dict[int, Ticket]
    size: int


class ShardedTable:
    """The parts of one table, with the methods of a table."""

    def __init__(self, parts: list[RemoteTable], seed: int | None = None) -> None:
        self.parts, self.name = parts, parts[0].name
        self.rng = np.random.default_rng(seed)
        self.turn = 0

    def insert(self, steps: Any, priority: Any = None, timeout: float | None = None) -> np.ndarray:
        """Each step as an item of its own, all on the server whose turn it is; the keys, uint64[n]."""
        turn, self.turn = self.turn, (self.turn + 1) % len(self.parts)
        return _global(self.parts[turn].insert(steps, priority, timeout), turn)

    def append(self, steps: Any, rows: Any, *, last: Any = (), length: Any = (), **options: Any) -> Any:
        """As `RemoteTable.append`, of steps whose rows are all of one server; use a call for each server's rows."""
        rows = np.asarray(rows)
        shard, *others = np.unique(rows % len(self.parts)).tolist()
        if others:
            raise WeftError(f"append to rows of one server at a time: row r is on server r % {len(self.parts)}")
        rows = rows // len(self.parts)
        positions, keys = self.parts[shard].append(steps, rows, last=last, length=length, **options)
        return positions, _global(keys, shard)

    def sample(self, n: int, timeout: float | None = None, *, seed: int | None = None) -> Sample:
        """n items of all servers, with their global probabilities."""
        return self._finish(self._begin(n, timeout, seed))

    def samples(self, n: int, ahead: int = 4, timeout: float | None = None) -> Iterator[Sample]:
        """Samples without end; `ahead` of them are under way while one is worked on."""
        under_way: deque[_Draw] = deque()
        try:
            while True:
                while len(under_way) <= ahead:
                    under_way.append(self._begin(n, timeout, None))
                yield self._finish(under_way.popleft())
        finally:
            for draw in under_way:
                for shard, ticket in draw.tickets.items():
                    self.parts[shard].client.drop(ticket)

    def update(self, keys: Any, priorities: Any) -> int:
        """New priorities, each on the server of its key; how many of the items were there."""
        priorities = np.broadcast_to(np.asarray(priorities, np.float64), np.shape(keys))
        return sum(part.update(local, priorities[where]) for part, local, where in self._by_server(keys))

    def delete(self, keys: Any) -> int:
        return sum(part.delete(local) for part, local, _ in self._by_server(keys))

    def reset(self) -> None:
        for part in self.parts:
            part.reset()

    def items(self, keys: Any = None) -> Items:
        """The items of these keys that are there, or all, server by server."""
        wanted = self._by_server(keys) if keys is not None else ((part, None, None) for part in self.parts)
        found = [(self.parts.index(part), part.items(local)) for part, local, _ in wanted]
        tagged = [items._replace(key=_global(items.key, shard)) for shard, items in found]
        return Items(*map(np.concatenate, zip(*tagged, strict=True))) if tagged else self.parts[0].items(keys)

    def info(self) -> dict[str, Any]:
        """The counts of all servers together, and what each says."""
        each = [part.info() for part in self.parts]
        names = ("size", "capacity", "inserted", "sampled", "removed", "deleted", "lost", "bytes")
        return {"name": self.name, **{name: sum(one[name] for one in each) for name in names}, "shards": each}

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)

    @property
    def limiter(self) -> Limiter:
        return self.parts[0].limiter

    @limiter.setter
    def limiter(self, limiter: Limiter) -> None:
        for part in self.parts:
            part.limiter = limiter

    def _begin(self, n: int, timeout: float | None, seed: int | None) -> _Draw:
        rng = self.rng if seed is None else np.random.default_rng(seed)
        weights, size = self._weights(timeout)
        shares = weights / weights.sum()
        origin = rng.choice(len(shares), n, p=shares)
        counts = np.bincount(origin, minlength=len(shares)).tolist()
        # A seed for every server, asked for or not, so that it does not depend on where the items come from.
        seeds = [None] * len(counts) if seed is None else rng.integers(0, 1 << 63, len(counts)).tolist()
        tickets = {
            shard: part.begin(count, timeout, seeds[shard])
            for shard, (part, count) in enumerate(zip(self.parts, counts, strict=True))
            if count
        }
        return _Draw(origin, shares, tickets, size)

    def _finish(self, draw: _Draw) -> Sample:
        found = {shard: self.parts[shard].finish(ticket) for shard, ticket in draw.tickets.items()}
        where = {shard: np.flatnonzero(draw.origin == shard) for shard in found}

        def gather(part: Callable[[int], np.ndarray]) -> np.ndarray:
            first = part(next(iter(found)))
            whole = np.empty((len(draw.origin), *first.shape[1:]), first.dtype)
            for shard in found:
                whole[where[shard]] = part(shard)
            return whole

        columns, about = next(iter(found.values()))
        data = {name: gather(lambda shard, name=name: found[shard][0][name]) for name in columns}
        infos = {shard: _globally(info, shard, draw.shares[shard]) for shard, (_, info) in found.items()}
        names = [name for name in about._fields if name != "table_size"]
        arrays = {name: gather(lambda shard, name=name: getattr(infos[shard], name)) for name in names}
        return Sample(self.parts[0].nested(data), Info(**arrays, table_size=draw.size))

    def _weights(self, timeout: float | None) -> tuple[np.ndarray, int]:
        """The mass of each server, and how many items there are: their numbers of items, if all masses are zero."""
        began = time.monotonic()
        while True:
            tickets = [part.client.begin("mass", self.name, {}, {}) for part in self.parts]
            found = [part.client.finish(ticket) for part, ticket in zip(self.parts, tickets, strict=True)]
            masses, sizes = (np.array([one.head["result"][name] for one in found]) for name in ("mass", "size"))
            if sizes.any():
                return (masses if masses.any() else sizes.astype(np.float64)), int(sizes.sum())
            if timeout is not None and time.monotonic() - began >= timeout:
                raise WeftError(f"table {self.name!r}: sample waited {timeout:g} s: no server has items in it")
            time.sleep(PAUSE)

    def _by_server(self, keys: Any) -> Iterator[tuple[RemoteTable, np.ndarray, np.ndarray]]:
        keys = np.asarray(keys, np.uint64).reshape(-1)
        shards = (keys >> SHIFT).astype(np.int64)
        for shard in np.unique(shards[shards < len(self.parts)]).tolist():
            where = np.flatnonzero(shards == shard)
            yield self.parts[shard], keys[where] & LOCAL, where


def _global(keys: np.ndarray, shard: int) -> np.ndarray:
    if len(keys) and keys.max() > LOCAL:
        raise WeftError("a table has used its slots so often that its keys have no room for a server: make it larger")
    return keys | (np.uint64(shard) << SHIFT)


def _globally(info: Info, shard: int, share: float) -> Info:
    return info._replace(key=_global(info.key, shard), probability=info.probability * share)
