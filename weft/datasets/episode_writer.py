"""Writes the steps of many environments, as training takes them, to a dataset of whole episodes.

The input is batches of steps of every environment; a dataset holds episodes of single environments. So the steps of
each environment are buffered until its episode has ended.

>>> import tempfile
>>> import gymnasium as gym
>>> from weft.datasets.parquet import read
>>> source = Source("mine", gym.spaces.Box(-1, 1, (1,)), gym.spaces.Discrete(2))
>>> steps = {"obs": np.zeros((3, 2, 1)), "action": np.zeros((3, 2)), "reward": np.array([[1, 2], [3, 4], [5, 6]])}
>>> steps |= {"final_obs": np.ones((3, 2, 1)), "valid": np.ones((3, 2), bool), "truncated": np.zeros((3, 2), bool)}
>>> steps["terminated"] = np.array([[False, False], [False, True], [False, False]])
>>> with tempfile.TemporaryDirectory() as folder:
...     writer = EpisodeWriter(folder, source, rows=[0, 1], num_envs=2)
...     writer.write(steps)
...     writer.close()
...     read(folder).steps["reward"].tolist()
[2.0, 4.0, 1.0, 3.0, 5.0, 6.0]
"""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from weft.datasets.dataset import Source, Steps
from weft.datasets.parquet import ROWS_PER_GROUP, DatasetWriter
from weft.errors import WeftError
from weft.replay.nested import Column, Structure

BUFFERED_STEPS = 256
"""Steps of each environment that are buffered before they are divided into episodes."""
BUFFERED_BYTES = 32 * 2**20
"""The limit of a buffer in bytes, where steps are large."""


class EpisodeWriter:
    """Writes the episodes of some of a run's environments; the first of them names the files.

    Rows that an autoreset inserted are dropped, and episodes whose environment failed. An episode that has not ended
    when the writer is closed, or its environment restarted, is written as truncated.
    """

    def __init__(self, path: str | Path, source: Source, *, rows: Sequence[int], num_envs: int):
        """A writer for the environments with the numbers `rows`, of `num_envs` in the run."""
        self._structure = Structure({**source.step, "valid": np.bool_(True)})
        step_bytes = sum(map(_bytes, self._structure.columns))
        name, group = f"rows-{min(rows):05d}", _fitting(ROWS_PER_GROUP, step_bytes)
        self._writer = DatasetWriter(path, source, name=name, rows_per_group=group)
        self._rows, self._num_envs = list(rows), num_envs
        self._episodes = [0] * len(rows)
        """The number of episodes written for each environment."""
        self._unfinished: list[list[list[np.ndarray]]] = [[] for _ in rows]
        """The parts of each environment's current episode: lists of leaves [N, ...]."""
        self._buffer: list[list[np.ndarray]] = []
        """Steps of all environments that are not divided yet: lists of leaves [T, B, ...]."""
        self._max_buffered = _fitting(BUFFERED_STEPS, step_bytes * len(rows))
        self._lock, self._closed = threading.Lock(), False

    def write(self, steps: Steps, *, restarted: bool = False) -> None:
        """Add steps, leaves [T, B, ...], with `valid`; `restarted`: all environments were reset before these steps."""
        with self._lock:
            # A thread that outlived its run may still call this.
            if self._closed:
                return
            if restarted:
                self._truncate_unfinished()
            # Copies, because the caller may reuse the arrays' memory.
            self._buffer.append([np.array(leaf) for leaf in self._structure.flatten(steps)])
            if sum(len(leaves[0]) for leaves in self._buffer) >= self._max_buffered:
                self._divide_buffer()

    def close(self) -> None:
        """Write everything and complete the files; idempotent."""
        with self._lock:
            if not self._closed:
                self._truncate_unfinished()
                self._closed = True
                self._discard_on_error(self._writer.close)

    def _divide_buffer(self) -> None:
        """Append the buffered steps to each environment's current episode, and write the episodes that ended."""
        buffered = [np.concatenate(leaves) for leaves in zip(*self._buffer, strict=True)]
        self._buffer = []
        for index in range(len(self._rows)) if buffered else ():
            self._unfinished[index].append([leaf[:, index].copy() for leaf in buffered])
            self._write_ended(index)

    def _write_ended(self, index: int) -> None:
        """Write the episodes of one environment that have ended."""
        newest = self._named(self._unfinished[index][-1])
        if not (newest["terminated"] | newest["truncated"] | ~newest["valid"]).any():
            return
        leaves = [np.concatenate(parts) for parts in zip(*self._unfinished[index], strict=True)]
        steps = self._named(leaves)
        valid = steps["valid"]
        # An episode ends at a terminated, truncated or invalid row. An invalid row belongs to no episode, and the steps
        # before it, back to the previous end, are dropped.
        last = np.flatnonzero(steps["terminated"] | steps["truncated"] | ~valid)
        stop = int(last[-1]) + 1
        whole = np.flatnonzero(valid[last][np.searchsorted(last, np.arange(stop))])
        self._unfinished[index] = [[leaf[stop:] for leaf in leaves]]
        if len(whole):
            self._write_episodes(index, [leaf[whole] for leaf in leaves])

    def _write_episodes(self, index: int, leaves: list[np.ndarray]) -> None:
        """Write whole episodes of one environment."""
        steps = self._structure.unflatten(leaves)
        del steps["valid"]
        ended = steps["terminated"] | steps["truncated"]
        number = self._episodes[index] + np.cumsum(ended) - ended
        self._episodes[index] += int(ended.sum())
        self._discard_on_error(lambda: self._writer.write(steps, number * self._num_envs + self._rows[index]))

    def _truncate_unfinished(self) -> None:
        """Write the current episodes as truncated."""
        self._divide_buffer()
        for index, parts in enumerate(self._unfinished):
            leaves = [np.concatenate(leaves) for leaves in zip(*parts, strict=True)]
            if leaves and len(leaves[0]):
                self._named(leaves)["truncated"][-1] = True
                self._write_episodes(index, leaves)
            self._unfinished[index] = []

    def _named(self, leaves: list[np.ndarray]) -> dict[str, np.ndarray]:
        return dict(zip(self._structure.names, leaves, strict=True))

    def _discard_on_error(self, write: Callable[[], None]) -> None:
        """Call `write`; if it fails, close this writer and delete the incomplete file."""
        try:
            write()
        except BaseException as error:
            self._closed = True
            self._writer.discard()
            if isinstance(error, OSError):
                raise WeftError(f"recording to {self._writer.path} failed: {error}") from error
            raise


def _bytes(column: Column) -> int:
    return int(np.prod(column.shape)) * column.dtype.itemsize


def _fitting(limit: int, size: int) -> int:
    """The number of elements of `size` bytes to buffer: at most `limit`, and at most BUFFERED_BYTES in all."""
    return max(1, min(limit, BUFFERED_BYTES // size))
