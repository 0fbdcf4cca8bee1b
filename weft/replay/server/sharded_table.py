"""One table spread over several servers, sampled as if it were a single table.

Every server has a table of the same name. Inserts go to the servers in turn. An append goes to the server of its row:
of M servers, row r is row r // M of server r % M. To sample, the client first asks all servers for their mass, the sum
of their items' weights, and draws a server for every item in proportion to it; each server then draws from its own
items. An item is therefore drawn with the same probability as in a single table. The reported probability, the
server's share times the item's probability there, is exact even if a table changes between the two requests.

The top eight bits of an item's key are the number of its server. Every server has a limiter of its own.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from weft.errors import WeftError
from weft.replay.items import Info, Items, Sample
from weft.replay.limiter import Limiter
from weft.replay.server.remote_table import RemoteTable
from weft.replay.server.session import PendingRequest

KEY_BITS = np.uint64(56)
KEY_MASK = np.uint64((1 << 56) - 1)
MAX_SHARDS = 256
RETRY_SECONDS = 0.01


class _SampleRequest(NamedTuple):
    """A sample in flight."""

    origin: np.ndarray
    """The shard of each item."""
    shares: np.ndarray
    """The probability of each shard."""
    requests: dict[int, PendingRequest]
    """By shard."""
    table_size: int


class ShardedTable:
    """The shards of one table, with the methods of a table."""

    def __init__(self, shards: list[RemoteTable], seed: int | None = None) -> None:
        self.shards, self.name = shards, shards[0].name
        self.rng = np.random.default_rng(seed)
        self.next_shard = 0

    @property
    def size(self) -> int:
        return sum(shard.size for shard in self.shards)

    @property
    def limiter(self) -> Limiter:
        return self.shards[0].limiter

    @limiter.setter
    def limiter(self, limiter: Limiter) -> None:
        for shard in self.shards:
            shard.limiter = limiter

    def insert(self, steps: Any, priority: Any = None, timeout: float | None = None) -> np.ndarray:
        """Inserts every step as an item, all on the next server in turn; returns the keys, uint64[n]."""
        number, self.next_shard = self.next_shard, (self.next_shard + 1) % len(self.shards)
        return _global_keys(self.shards[number].insert(steps, priority, timeout), number)

    def append(self, steps: Any, rows: Any, *, last: Any = (), length: Any = (), **options: Any) -> Any:
        """Does the same as `RemoteTable.append`; the rows of one call must all be on one server."""
        rows = np.asarray(rows)
        number, *others = np.unique(rows % len(self.shards)).tolist()
        if others:
            raise WeftError(
                f"append to rows of one server at a time: row r is on server r % {len(self.shards)}, "
                f"and these rows are on servers {[number, *others]}"
            )
        rows = rows // len(self.shards)
        positions, keys = self.shards[number].append(steps, rows, last=last, length=length, **options)
        return positions, _global_keys(keys, number)

    def sample(self, n: int, timeout: float | None = None, *, seed: int | None = None) -> Sample:
        """Draws n items from all servers; reports their probabilities over all servers."""
        return self._finish(self._start(n, timeout, seed))

    def samples(self, n: int, ahead: int = 4, timeout: float | None = None) -> Iterator[Sample]:
        """Yields samples without end; requests `ahead` samples in advance, so that they arrive while one is used."""
        samples: deque[_SampleRequest] = deque()
        try:
            while True:
                while len(samples) <= ahead:
                    samples.append(self._start(n, timeout, None))
                yield self._finish(samples.popleft())
        finally:
            for sample in samples:
                for number, request in sample.requests.items():
                    self.shards[number].session.cancel(request)

    def update(self, keys: Any, priorities: Any) -> int:
        """Sets new priorities; returns the number of items that were found."""
        priorities = np.broadcast_to(np.asarray(priorities, np.float64), np.shape(keys))
        return sum(shard.update(local, priorities[index]) for shard, local, index in self._by_shard(keys))

    def delete(self, keys: Any) -> int:
        """Deletes items; returns the number of items that were found."""
        return sum(shard.delete(local) for shard, local, _ in self._by_shard(keys))

    def reset(self) -> None:
        for shard in self.shards:
            shard.reset()

    def items(self, keys: Any = None) -> Items:
        """Returns the items with these keys that are in the table, or all items; shard by shard."""
        wanted = self._by_shard(keys) if keys is not None else ((shard, None, None) for shard in self.shards)
        found = [(self.shards.index(shard), shard.items(local)) for shard, local, _ in wanted]
        items = [each._replace(key=_global_keys(each.key, number)) for number, each in found]
        return Items(*map(np.concatenate, zip(*items, strict=True))) if items else self.shards[0].items(keys)

    def info(self) -> dict[str, Any]:
        """Returns the sum of all servers' counts, and each server's `info` under "shards"."""
        infos = [shard.info() for shard in self.shards]
        names = ("size", "capacity", "inserted", "sampled", "removed", "deleted", "lost", "bytes")
        return {"name": self.name, **{name: sum(info[name] for info in infos) for name in names}, "shards": infos}

    def _start(self, n: int, timeout: float | None, seed: int | None) -> _SampleRequest:
        rng = self.rng if seed is None else np.random.default_rng(seed)
        weights, size = self._weights(timeout)
        shares = weights / weights.sum()
        origin = rng.choice(len(shares), n, p=shares)
        counts = np.bincount(origin, minlength=len(shares)).tolist()
        # Seeds are drawn for all shards, so that a shard's seed does not depend on which shards have items to draw.
        seeds = [None] * len(counts) if seed is None else rng.integers(0, 1 << 63, len(counts)).tolist()
        requests = {
            number: shard.start_sample(count, timeout, seeds[number])
            for number, (shard, count) in enumerate(zip(self.shards, counts, strict=True))
            if count
        }
        return _SampleRequest(origin, shares, requests, size)

    def _finish(self, sample: _SampleRequest) -> Sample:
        """Waits for every shard's part of a sample, and puts the items into the order in which they were drawn."""
        parts = {number: self.shards[number].finish_sample(request) for number, request in sample.requests.items()}
        indices = {number: np.flatnonzero(sample.origin == number) for number in parts}

        def merge(array_of: Callable[[int], np.ndarray]) -> np.ndarray:
            first = array_of(next(iter(parts)))
            merged = np.empty((len(sample.origin), *first.shape[1:]), first.dtype)
            for number in parts:
                merged[indices[number]] = array_of(number)
            return merged

        columns, any_info = next(iter(parts.values()))
        data = {name: merge(lambda number, name=name: parts[number][0][name]) for name in columns}
        infos = {number: _global_info(info, number, sample.shares[number]) for number, (_, info) in parts.items()}
        names = [name for name in any_info._fields if name != "table_size"]
        arrays = {name: merge(lambda number, name=name: getattr(infos[number], name)) for name in names}
        return Sample(self.shards[0].nest(data), Info(**arrays, table_size=sample.table_size))

    def _weights(self, timeout: float | None) -> tuple[np.ndarray, int]:
        """Waits until a server has items; returns each server's mass, and the number of items.

        If all masses are zero, the numbers of items take their place.
        """
        began = time.monotonic()
        while True:
            requests = [shard.session.start("mass", self.name, {}, {}) for shard in self.shards]
            replies = [shard.session.finish(request) for shard, request in zip(self.shards, requests, strict=True)]
            masses, sizes = (np.array([reply.head["result"][name] for reply in replies]) for name in ("mass", "size"))
            if sizes.any():
                return (masses if masses.any() else sizes.astype(np.float64)), int(sizes.sum())
            if timeout is not None and time.monotonic() - began >= timeout:
                raise WeftError(f"table {self.name!r}: sample waited {timeout:g} s: it has no items on any server")
            time.sleep(RETRY_SECONDS)

    def _by_shard(self, keys: Any) -> Iterator[tuple[RemoteTable, np.ndarray, np.ndarray]]:
        """Yields each shard, its local keys, and their indices in `keys`."""
        keys = np.asarray(keys, np.uint64).reshape(-1)
        numbers = (keys >> KEY_BITS).astype(np.int64)
        for number in np.unique(numbers[numbers < len(self.shards)]).tolist():
            index = np.flatnonzero(numbers == number)
            yield self.shards[number], keys[index] & KEY_MASK, index


def _global_keys(keys: np.ndarray, shard: int) -> np.ndarray:
    if len(keys) and keys.max() > KEY_MASK:
        raise WeftError(
            "the slots of a table were reused so often that its keys have no bits left for the server's number: "
            "give the tables a larger capacity"
        )
    return keys | (np.uint64(shard) << KEY_BITS)


def _global_info(info: Info, shard: int, share: float) -> Info:
    return info._replace(key=_global_keys(info.key, shard), probability=info.probability * share)
