"""A replay table on the host, for layouts in which several roles use it concurrently.

The state holds only a handle: the table belongs to the run, one for each replica of the role that it is placed on. Its
functions are thread-safe host code, so inserts, samples and updates may run concurrently if the layout allows it (see
`weft.project.subroles`).
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from weft.errors import WeftError
from weft.fragments import per_replica, replica
from weft.host import host_call, new_token, objects
from weft.replay.interface import Batch, TableSpec
from weft.replay.selectors import parse_selector
from weft.replay.store import Store
from weft.replay.table import Table

SAMPLE_TIMEOUT = 60.0
"""Seconds that a sample waits for inserts; a run reaches this only if it is stuck."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class HostTableHandle:
    """Identifies a table on the host; the state of `HostReplay`."""

    table_id: jax.Array
    """A random number that differs between tables."""
    token: jax.Array
    """The order token of the host calls."""
    no_steps: Any
    """Leaves [0, ...]: the shapes and dtypes of steps."""


@dataclass(frozen=True)
class HostReplay:
    """Replay with the table on the host."""

    spec: TableSpec

    def init(self, step: Any, key: jax.Array) -> HostTableHandle:
        no_steps = jax.tree.map(lambda x: jnp.zeros((0, *x.shape[1:]), x.dtype), step)
        return HostTableHandle(jax.random.bits(key), new_token(1), no_steps)

    def insert(
        self, state: HostTableHandle, row: Int[Array, " B"], steps: Any, priority: Float[Array, "T B"] | None = None
    ) -> HostTableHandle:
        arguments = (row, jax.tree.leaves(steps), priority)
        token, _ = self._call("insert", jax.ShapeDtypeStruct((), jnp.int32), state, arguments)
        return replace(state, token=token)

    def sample(self, state: HostTableHandle, key: jax.Array, shape: tuple[int, ...]) -> tuple[HostTableHandle, Batch]:
        no_steps, structure = jax.tree.flatten(state.no_steps)
        steps = [jax.ShapeDtypeStruct((self.spec.length, *shape, *x.shape[1:]), x.dtype) for x in no_steps]
        keys, probability = jax.ShapeDtypeStruct((*shape, 2), jnp.uint32), jax.ShapeDtypeStruct(shape, jnp.float32)
        result = (steps, keys, probability, jax.ShapeDtypeStruct((), jnp.float32))
        token, (steps, keys, probability, size) = self._call(
            "sample", result, state, (jax.random.key_data(key), jnp.zeros(shape, bool))
        )
        # Each replica draws from its own table, so their number changes the draws.
        steps, keys, probability, size = per_replica((steps, keys, probability, size))
        return replace(state, token=token), Batch(structure.unflatten(steps), keys, probability, size)

    def update(self, state: HostTableHandle, key: jax.Array, priority: Float[Array, "*n"]) -> HostTableHandle:
        token, _ = self._call("update", jax.ShapeDtypeStruct((), jnp.int32), state, (key, priority))
        return replace(state, token=token)

    def _call(self, method: str, result: Any, state: HostTableHandle, arguments: Any) -> tuple[Any, Any]:
        index, _ = replica()
        call = partial(_call_table, self.spec, method)
        return host_call(call, result, state.token, state.table_id, index, arguments, name=f"replay.{method}")


def _call_table(
    spec: TableSpec, method: str, token: np.ndarray, table_id: np.ndarray, index: np.ndarray, arguments: Any
) -> Any:
    """Call a method of this replica's table, which the run creates at the first call."""
    del token
    key, run_objects = (HostReplay, int(table_id), int(index)), objects()
    with run_objects.lock:
        table = run_objects.get(key) or run_objects.add(key, HostTable(spec))
    return getattr(table, method)(arguments)


class HostTable:
    """The table of one replica, in NumPy."""

    def __init__(self, spec: TableSpec) -> None:
        self.spec = spec
        self.priority = np.zeros((spec.steps_per_row, spec.rows))
        self.table: Table | None = None

    def insert(self, arguments: Any) -> np.int32:
        """Insert steps, leaves [T, B, ...] of the environments `row`, and the items that they complete."""
        row, leaves, priority = arguments
        if self.table is None:
            self.table = self._create_table(leaves)
        store, count = self.table.store, len(leaves[0])
        rows = np.tile(row, count)
        positions = store.append([leaf.reshape(-1, *leaf.shape[2:]) for leaf in leaves], rows)
        if priority is not None:
            self.priority[positions // store.rows % self.spec.steps_per_row, rows] = priority.reshape(-1)
        first = positions // store.rows - (self.spec.length - 1)
        complete = (first >= 0) & (first % self.spec.period == 0)
        starts = (first * store.rows + rows)[complete]
        if len(starts):
            priorities = None if priority is None else self._initial_priorities(first[complete], rows[complete])
            self.table.insert_items(starts, self.spec.length, priorities)
        return np.int32(self.table.size)

    def sample(self, arguments: Any) -> Any:
        """Sample one item for each element of `shaped`, leaves [length, *n, ...], with a random key as seed."""
        seed, shaped = arguments
        data, info = self._existing_table().sample(
            shaped.size, SAMPLE_TIMEOUT, seed=np.random.default_rng(seed.reshape(-1))
        )
        steps = [leaf[None] if self.spec.length == 1 else np.swapaxes(leaf, 0, 1) for leaf in data]
        steps = [leaf.reshape(leaf.shape[0], *shaped.shape, *leaf.shape[2:]) for leaf in steps]
        keys = np.ascontiguousarray(info.key).view(np.uint32).reshape(*shaped.shape, 2)
        return steps, keys, info.probability.astype(np.float32).reshape(shaped.shape), np.float32(info.table_size)

    def update(self, arguments: Any) -> np.int32:
        keys, priority = arguments
        return np.int32(self._existing_table().update(np.ascontiguousarray(keys).view(np.uint64), priority.reshape(-1)))

    def close(self) -> None:
        if self.table is not None:
            self.table.close()

    def _existing_table(self) -> Table:
        if self.table is None:
            raise WeftError("a replay table was used before anything was inserted: insert steps first, in a warm-up")
        return self.table

    def _create_table(self, leaves: list[np.ndarray]) -> Table:
        spec = self.spec
        store = Store([leaf[0, 0] for leaf in leaves], capacity=spec.steps_per_row * spec.rows, rows=spec.rows)
        capacity = spec.rows * -(-spec.steps_per_row // spec.period)
        return Table(store=store, capacity=capacity, length=spec.length, sampler=parse_selector(spec.sampler))

    def _initial_priorities(self, first: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """The priorities of new items, from their steps' priorities."""
        slots = (first[:, None] + np.arange(self.spec.length)) % self.spec.steps_per_row
        steps = self.priority[slots, rows[:, None]]
        return self.spec.mix * steps.max(-1) + (1 - self.spec.mix) * steps.mean(-1)
