"""A replay table on the host, for layouts in which several roles use it at once.

In the state there is only its name: the table itself belongs to the run, one for each replica of the role that it is
placed on. Its functions are host code, so they may be called by whoever inserts, whoever samples and whoever changes
priorities at the same time, if the layout lets them (see `weft.project.subroles`).
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from weft.errors import WeftError
from weft.fragments import replica
from weft.host import host_call, new_token, objects
from weft.replay.interface import Batch, TableSpec
from weft.replay.selectors import parse_selector
from weft.replay.store import Store
from weft.replay.table import Table

# Seconds that a sample waits for something to be inserted: a run does not get there, unless it is stuck.
PATIENCE = 60.0


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Name:
    """What stands for the table in the state."""

    name: jax.Array
    token: jax.Array
    like: Any
    """No steps, leaves [0, ...]: their shapes and types."""


@dataclass(frozen=True)
class HostReplay:
    """A table that the run keeps on the host."""

    spec: TableSpec

    def init(self, step: Any, key: jax.Array) -> Name:
        like = jax.tree.map(lambda x: jnp.zeros((0, *x.shape[1:]), x.dtype), step)
        return Name(jax.random.bits(key), new_token(1), like)

    def insert(
        self, state: Name, row: Int[Array, " B"], steps: Any, priority: Float[Array, "T B"] | None = None
    ) -> Name:
        given = (row, jax.tree.leaves(steps), priority)
        token, _ = self._call("insert", jax.ShapeDtypeStruct((), jnp.int32), state, given)
        return replace(state, token=token)

    def sample(self, state: Name, key: jax.Array, shape: tuple[int, ...]) -> tuple[Name, Batch]:
        like, structure = jax.tree.flatten(state.like)
        steps = [jax.ShapeDtypeStruct((self.spec.length, *shape, *x.shape[1:]), x.dtype) for x in like]
        keys, probability = jax.ShapeDtypeStruct((*shape, 2), jnp.uint32), jax.ShapeDtypeStruct(shape, jnp.float32)
        result = (steps, keys, probability, jax.ShapeDtypeStruct((), jnp.float32))
        token, (steps, keys, probability, size) = self._call(
            "sample", result, state, (jax.random.key_data(key), jnp.zeros(shape, bool))
        )
        return replace(state, token=token), Batch(structure.unflatten(steps), keys, probability, size)

    def update(self, state: Name, key: jax.Array, priority: Float[Array, "*n"]) -> Name:
        token, _ = self._call("update", jax.ShapeDtypeStruct((), jnp.int32), state, (key, priority))
        return replace(state, token=token)

    def _call(self, what: str, result: Any, state: Name, given: Any) -> tuple[Any, Any]:
        index, _ = replica()
        call = partial(_called, self.spec, what)
        return host_call(call, result, state.token, state.name, index, given, name=f"replay.{what}")


def _called(spec: TableSpec, what: str, token: np.ndarray, name: np.ndarray, index: np.ndarray, given: Any) -> Any:
    del token
    key, known = (HostReplay, int(name), int(index)), objects()
    with known.lock:
        table = known.get(key) or known.add(key, HostTable(spec))
    return getattr(table, what)(given)


class HostTable:
    """The table of one replica, in NumPy."""

    def __init__(self, spec: TableSpec) -> None:
        self.spec = spec
        self.priority = np.zeros((spec.steps_per_row, spec.rows))
        self.table: Table | None = None

    def insert(self, given: Any) -> np.int32:
        """Steps, as leaves [T, B, ...], with the rows that they belong to; whole items come into the table."""
        row, leaves, priority = given
        if self.table is None:
            self.table = self._make(leaves)
        store, count = self.table.store, len(leaves[0])
        rows = np.tile(row, count)
        positions = store.append([leaf.reshape(-1, *leaf.shape[2:]) for leaf in leaves], rows)
        if priority is not None:
            self.priority[positions // store.rows % self.spec.steps_per_row, rows] = priority.reshape(-1)
        first = positions // store.rows - (self.spec.length - 1)
        whole = (first >= 0) & (first % self.spec.period == 0)
        starts = (first * store.rows + rows)[whole]
        if len(starts):
            weights = None if priority is None else self._mixed(first[whole], rows[whole])
            self.table.insert_items(starts, self.spec.length, weights)
        return np.int32(self.table.size)

    def sample(self, given: Any) -> Any:
        """Items as leaves [length, *n, ...], drawn by a random key: as many as a given array has entries."""
        seed, like = given
        data, info = self._there().sample(like.size, PATIENCE, seed=np.random.default_rng(seed.reshape(-1)))
        steps = [leaf[None] if self.spec.length == 1 else np.swapaxes(leaf, 0, 1) for leaf in data]
        steps = [leaf.reshape(leaf.shape[0], *like.shape, *leaf.shape[2:]) for leaf in steps]
        keys = np.ascontiguousarray(info.key).view(np.uint32).reshape(*like.shape, 2)
        return steps, keys, info.probability.astype(np.float32).reshape(like.shape), np.float32(info.table_size)

    def update(self, given: Any) -> np.int32:
        keys, priority = given
        return np.int32(self._there().update(np.ascontiguousarray(keys).view(np.uint64), priority.reshape(-1)))

    def close(self) -> None:
        if self.table is not None:
            self.table.close()

    def _there(self) -> Table:
        if self.table is None:
            raise WeftError("a replay table is sampled from before anything was inserted: collect first, in a warm-up")
        return self.table

    def _make(self, leaves: list[np.ndarray]) -> Table:
        spec = self.spec
        store = Store([leaf[0, 0] for leaf in leaves], capacity=spec.steps_per_row * spec.rows, rows=spec.rows)
        capacity = spec.rows * -(-spec.steps_per_row // spec.period)
        return Table(store=store, capacity=capacity, length=spec.length, sampler=parse_selector(spec.sampler))

    def _mixed(self, first: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """The first priority of items, from those of their steps."""
        places = (first[:, None] + np.arange(self.spec.length)) % self.spec.steps_per_row
        own = self.priority[places, rows[:, None]]
        return self.spec.mix * own.max(-1) + (1 - self.spec.mix) * own.mean(-1)
