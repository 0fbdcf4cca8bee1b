"""A dataset as the replay table of an algorithm: a table on the device, or a dataset in host memory.

On the device, the steps are divided among the environments' rows like the steps of any other table, and so among
replicas and devices. On the host, every replica samples from all steps, and only sampled steps are transferred.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from weft.datasets.dataset import Dataset
from weft.datasets.load import describe, read
from weft.errors import WeftError
from weft.host import host_call, new_token, objects
from weft.replay.device import DeviceReplay, DeviceTable
from weft.replay.interface import Batch, TableSpec


def table_spec_for(path: str, *, rows: int, length: int) -> TableSpec:
    """The specification of a table for a dataset in `rows` rows; a remainder of fewer than `rows` steps is dropped."""
    _, steps = describe(path)
    if steps < rows * length:
        raise WeftError(
            f"the dataset {path} has {steps} steps, but {rows} rows (num_envs) with items of {length} steps need at "
            f"least {rows * length}: record more steps, or lower num_envs"
        )
    # `DeviceReplay.insert` accepts at most `steps_per_row - length + 1` steps at once.
    capacity = rows * (steps // rows + length - 1)
    return TableSpec(capacity=capacity, rows=rows, length=length)


def load_device_table(table: DeviceReplay, path: str, rows: int, key: jax.Array) -> DeviceTable:
    """The first `rows` rows of a table filled with the dataset's steps, which are read at run time, not when traced."""
    shape = (table.spec.steps_per_row - table.spec.length + 1, rows)
    step = describe(path)[0].step
    result = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((*shape, *leaf.shape), leaf.dtype), step)
    _, steps = host_call(partial(_read_in_rows, path, shape), result, new_token(1), name="dataset")
    empty = table.init(jax.tree.map(lambda leaf: leaf[0], steps), key)
    return table.insert(empty, jnp.arange(rows), steps, None)


@dataclass(frozen=True)
class HostDatasetReplay:
    """A dataset in host memory, sampled uniformly. The state is the order token, which counts the samples."""

    path: str
    spec: TableSpec

    def init(self, step: Any, key: jax.Array) -> jax.Array:
        del step, key
        return new_token(1)

    def sample(self, state: jax.Array, key: jax.Array, shape: tuple[int, ...]) -> tuple[jax.Array, Batch]:
        length, step = self.spec.length, describe(self.path)[0].step
        steps = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((length, *shape, *leaf.shape), leaf.dtype), step)
        keys, probability = jax.ShapeDtypeStruct(shape, jnp.int32), jax.ShapeDtypeStruct(shape, jnp.float32)
        # A number for each item, so that a replica draws its own part of the batch.
        numbers = jax.random.bits(key, shape, jnp.uint32)
        call = partial(_sample, self.path, length)
        token, batch = host_call(call, (steps, keys, probability), state, numbers, name="replay.sample")
        size = describe(self.path)[1] - length + 1
        return token, Batch(*batch, size=jnp.float32(size))

    def insert(self, state: Any, row: Any, steps: Any, priority: Any = None) -> NoReturn:
        raise WeftError("a dataset is read-only: steps cannot be inserted")

    def update(self, state: Any, key: Any, priority: Any) -> NoReturn:
        raise WeftError("a dataset has no priorities: its steps are sampled uniformly")


class _OpenDataset:
    """A dataset that a run keeps in memory."""

    def __init__(self, path: str):
        self.dataset: Dataset = read(path)

    def close(self) -> None:
        pass


def _read_in_rows(path: str, shape: tuple[int, int], token: np.ndarray) -> Any:
    """A dataset's steps as leaves [T, rows, ...]; each row holds consecutive steps."""
    del token
    length, rows = shape
    return jax.tree.map(
        lambda leaf: np.ascontiguousarray(leaf[: rows * length].reshape(rows, length, *leaf.shape[1:]).swapaxes(0, 1)),
        read(path).steps,
    )


def _sample(path: str, length: int, token: np.ndarray, numbers: np.ndarray) -> Any:
    """One item for each random number."""
    del token
    run_objects = objects()
    with run_objects.lock:
        opened = run_objects.get((_OpenDataset, path)) or run_objects.add((_OpenDataset, path), _OpenDataset(path))
    count = len(opened.dataset) - length + 1
    first = ((numbers.astype(np.uint64) * np.uint64(count)) >> np.uint64(32)).astype(np.int32)
    indices = first + np.arange(length).reshape(-1, *(1 for _ in numbers.shape))
    steps = jax.tree.map(lambda leaf: leaf[indices], opened.dataset.steps)
    return steps, first, np.full(numbers.shape, 1.0 / count, np.float32)
