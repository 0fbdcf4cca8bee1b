"""A dataset as the table that an algorithm learns from: on the device, or drawn from on the host.

On the device the steps are divided over the environments' rows like those of any other table: so they divide over
replicas and devices too. On the host every replica draws from all of them, and only what is drawn is moved.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from weft.datasets.dataset import Dataset, look, read
from weft.errors import WeftError
from weft.host import host_call, new_token, objects
from weft.replay.device import DeviceReplay, DeviceTable
from weft.replay.interface import Batch, TableSpec


def room_for(path: str, *, rows: int, length: int) -> TableSpec:
    """What a table keeps that all steps of a dataset go into, but for fewer than there are rows."""
    _, steps = look(path)
    if steps < rows * length:
        raise WeftError(
            f"the dataset {path} has {steps} steps, and {rows * length} are needed to fill {rows} rows (num_envs) with "
            f"what is sampled, {length} steps: record more, or give fewer"
        )
    # One item more than there is: so all can be put in at once.
    capacity = rows * (steps // rows + length - 1)
    return TableSpec(capacity=capacity, rows=rows, length=length)


def fill(table: DeviceReplay, path: str, rows: int, key: jax.Array) -> DeviceTable:
    """The table's state with the first `rows` of its rows, all steps in it; read when it is run, not when traced."""
    shape = (table.spec.steps_per_row - table.spec.length + 1, rows)
    result = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((*shape, *leaf.shape), leaf.dtype), look(path)[0].step)
    _, steps = host_call(partial(_in_rows, path, shape), result, new_token(1), name="dataset")
    empty = table.init(jax.tree.map(lambda leaf: leaf[0], steps), key)
    return table.insert(empty, jnp.arange(rows), steps, None)


@dataclass(frozen=True)
class HostDataset:
    """Steps that stay on the host, all drawn alike; in the state there is only a count of the draws."""

    path: str
    spec: TableSpec

    def init(self, step: Any, key: jax.Array) -> jax.Array:
        del step, key
        return new_token(1)

    def sample(self, state: jax.Array, key: jax.Array, shape: tuple[int, ...]) -> tuple[jax.Array, Batch]:
        length, like = self.spec.length, look(self.path)[0].step
        steps = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((length, *shape, *leaf.shape), leaf.dtype), like)
        key_like, chance = jax.ShapeDtypeStruct(shape, jnp.int32), jax.ShapeDtypeStruct(shape, jnp.float32)
        result = (steps, key_like, chance, jax.ShapeDtypeStruct((), jnp.float32))
        given = (jax.random.key_data(key), jnp.zeros(shape, bool))
        token, drawn = host_call(partial(_drawn, self.path, length), result, state, *given, name="replay.sample")
        return token, Batch(*drawn)

    def insert(self, state: Any, row: Any, steps: Any, priority: Any = None) -> NoReturn:
        raise WeftError("a dataset is only read: nothing can be put into it")

    def update(self, state: Any, key: Any, priority: Any) -> NoReturn:
        raise WeftError("steps of a dataset have no priorities: all are drawn alike")


class _Opened:
    """A dataset that the run keeps in memory."""

    def __init__(self, path: str):
        self.dataset: Dataset = read(path)

    def close(self) -> None:
        pass


def _in_rows(path: str, shape: tuple[int, int], token: np.ndarray) -> Any:
    """Steps as leaves [T, rows, ...], each row steps that follow each other."""
    del token
    length, rows = shape
    return jax.tree.map(
        lambda leaf: np.ascontiguousarray(leaf[: rows * length].reshape(rows, length, *leaf.shape[1:]).swapaxes(0, 1)),
        read(path).steps,
    )


def _drawn(path: str, length: int, token: np.ndarray, seed: np.ndarray, like: np.ndarray) -> Any:
    """As many items as a given array has entries, drawn by a random key."""
    del token
    known = objects()
    with known.lock:
        opened = known.get((_Opened, path)) or known.add((_Opened, path), _Opened(path))
    count = len(opened.dataset) - length + 1
    first = np.random.default_rng(seed.reshape(-1)).integers(count, size=like.shape, dtype=np.int32)
    places = first + np.arange(length).reshape(-1, *(1 for _ in like.shape))
    steps = jax.tree.map(lambda leaf: leaf[places], opened.dataset.steps)
    return steps, first, np.full(like.shape, 1.0 / count, np.float32), np.float32(count)
