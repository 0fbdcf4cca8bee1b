"""Writes and reads datasets as folders of Parquet files, which other tools can read too.

Each file holds whole episodes, in order, with one row per step and the columns

    obs, action, reward, terminated, truncated   the step; a nested observation has one column per leaf, named by its
                                                 path (`obs/camera`); arrays are flattened
    final_obs                                    the observation after the last step of an episode; null in other rows,
                                                 where it equals the next row's `obs`
    episode                                      the episode's number; in a training run with n environments, episode k
                                                 of environment r (both from 0) has number k * n + r

Each file's metadata holds the source (the environment's name and spaces) as JSON under the key `weft`. A file gets its
final name only when it is complete: after a crash, all complete files are readable.

>>> import tempfile
>>> import gymnasium as gym
>>> space, choice = gym.spaces.Box(-1, 1, (2,)), gym.spaces.Discrete(2)
>>> steps = {"obs": np.zeros((3, 2), np.float32), "action": np.array([0, 1, 1], np.int32), "reward": np.ones(3)}
>>> steps |= {"terminated": np.array([False, False, True]), "truncated": np.zeros(3, bool), "final_obs": steps["obs"]}
>>> with tempfile.TemporaryDirectory() as folder:
...     with DatasetWriter(folder + "/data", Source("mine", space, choice)) as writer:
...         writer.write(steps)
...     dataset = read(folder + "/data")
>>> len(dataset), dataset.episodes
(3, 1)
"""

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import jax
import numpy as np

from weft.datasets.arrow import from_arrow, import_arrow, to_arrow
from weft.datasets.dataset import Dataset, Source, Steps
from weft.errors import WeftError
from weft.replay.nested import Structure

METADATA = b"weft"
ROWS_PER_GROUP = 10_000
ROWS_PER_FILE = 200_000


def check_new_folder(path: str | Path) -> None:
    """Raise unless a dataset can be written to this folder: it is new or empty, and `pyarrow` is installed."""
    import_arrow()
    folder = Path(path)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise WeftError(f"{folder} already exists: give a folder that is empty or does not exist yet")


class DatasetWriter:
    """Writes consecutive steps of one environment to a new dataset.

    Several writers may write to one folder at once if each has its own `name`, the prefix of its files.
    """

    def __init__(
        self,
        path: str | Path,
        source: Source,
        *,
        name: str | None = None,
        rows_per_group: int = ROWS_PER_GROUP,
        rows_per_file: int = ROWS_PER_FILE,
    ):
        if name is None:
            check_new_folder(path)
        self.path, self.source, self.name = Path(path), source, name or "steps"
        self._structure = Structure(source.step)
        self._rows_per_group, self._rows_per_file = rows_per_group, rows_per_file
        self._buffer: list[list[np.ndarray]] = []
        """Steps that are not in the file yet: their leaves, and the numbers of their episodes."""
        self._buffered_rows = 0
        self._episodes = 0
        self._file: Any = None
        self._file_number = 0
        self._file_rows = 0

    def write(self, steps: Steps, episode: np.ndarray | None = None) -> None:
        """Add steps, leaves [N, ...]; the steps of an incomplete episode are buffered until it ends.

        `episode` is the number of each step's episode; by default, episodes are numbered in order.
        """
        leaves = [np.asarray(leaf) for leaf in self._structure.flatten(steps)]
        for leaf, column in zip(leaves, self._structure.columns, strict=True):
            if leaf.shape[1:] != column.shape:
                raise WeftError(
                    f"{column.name} has shape {list(leaf.shape[1:])} in each step: expected {list(column.shape)}"
                )
        ended = self._ended(leaves)
        if episode is None:
            episode = self._episodes + np.cumsum(ended) - ended
        self._buffer.append([*leaves, episode.astype(np.int64)])
        self._episodes += int(ended.sum())
        self._buffered_rows += len(ended)
        if self._buffered_rows >= self._rows_per_group and ended.any():
            self._write_whole_episodes()

    def close(self) -> None:
        """Complete the last file; the steps of an incomplete episode are dropped."""
        self._write_whole_episodes()
        self._complete_file()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, *error: object) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    def discard(self) -> None:
        """Delete the incomplete file; complete files stay."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._partial_path.unlink(missing_ok=True)
            self._file = None

    def _ended(self, leaves: Sequence[np.ndarray]) -> np.ndarray:
        terminated, truncated = (leaves[self._structure.names.index(name)] for name in ("terminated", "truncated"))
        return terminated.astype(bool) | truncated.astype(bool)

    def _write_whole_episodes(self) -> None:
        """Write the buffer up to the end of its last whole episode."""
        rows = [np.concatenate(parts) for parts in zip(*self._buffer, strict=True)]
        ends = np.flatnonzero(self._ended(rows)) if rows else []
        if len(ends):
            stop = int(ends[-1]) + 1
            self._buffer = [[leaf[stop:] for leaf in rows]]
            self._buffered_rows = len(rows[0]) - stop
            *leaves, episode = (leaf[:stop] for leaf in rows)
            self._write_group(leaves, episode)

    def _write_group(self, leaves: list[np.ndarray], episode: np.ndarray) -> None:
        """Add whole episodes to the file, as a row group."""
        pa, pq = import_arrow()
        ended = self._ended(leaves)
        columns = zip(self._structure.columns, leaves, strict=True)
        arrays = {c.name: to_arrow(c, leaf, ~ended if _is_final(c.name) else None) for c, leaf in columns}
        table = pa.table({**arrays, "episode": pa.array(episode)})
        table = table.replace_schema_metadata({METADATA: self.source.to_json().encode()})
        if self._file is None:
            self.path.mkdir(parents=True, exist_ok=True)
            self._file = pq.ParquetWriter(self._partial_path, table.schema, compression="zstd")
        self._file.write_table(table)
        self._file_rows += len(ended)
        if self._file_rows >= self._rows_per_file:
            self._complete_file()

    @property
    def _partial_path(self) -> Path:
        return self.path / f".{self.name}-{self._file_number:05d}.{os.getpid()}.tmp"

    def _complete_file(self) -> None:
        if self._file is None:
            return
        self._file.close()
        with open(self._partial_path, "rb") as file:
            os.fsync(file.fileno())
        os.replace(self._partial_path, self.path / f"{self.name}-{self._file_number:05d}.parquet")
        self._file = None
        self._file_number += 1
        self._file_rows = 0


def read(path: str | Path) -> Dataset:
    """The dataset in a folder."""
    pa, pq = import_arrow()
    table = pa.concat_tables([pq.read_table(file) for file in _files(path)])
    source = _source(table.schema.metadata, path)
    structure = Structure(source.step)
    if missing := [name for name in structure.names if name not in table.column_names]:
        raise WeftError(f"the dataset {path} lacks the columns {', '.join(missing)}")
    leaves = [from_arrow(column, table.column(column.name)) for column in structure.columns]
    steps = structure.unflatten(leaves)
    last = np.flatnonzero(steps["terminated"] | steps["truncated"])
    return Dataset(source, steps | {"final_obs": _final_obs(steps["obs"], steps["final_obs"], last)})


def describe(path: str | Path) -> tuple[Source, int]:
    """The source of a dataset and its number of steps, from the files' metadata alone."""
    _, pq = import_arrow()
    metadata = [pq.ParquetFile(file).metadata for file in _files(path)]
    return _source(metadata[0].metadata, path), sum(each.num_rows for each in metadata)


def _final_obs(obs: Any, at_end: Any, last: np.ndarray) -> Any:
    """The observation after each step: the next row's, or `at_end` for the last steps of episodes."""

    def of_leaf(obs: np.ndarray, at_end: np.ndarray) -> np.ndarray:
        following = np.concatenate([obs[1:], obs[:1]])
        following[last] = at_end
        return following

    return jax.tree.map(of_leaf, obs, at_end)


def _is_final(name: str) -> bool:
    return name.split("/")[0] == "final_obs"


def _files(path: str | Path) -> list[Path]:
    files = sorted(Path(path).glob("*.parquet"))
    if not files:
        raise WeftError(
            f"no dataset in {path}: it holds no .parquet file; `weft train` and `weft eval` make one, with --record DIR"
        )
    return files


def _source(metadata: Mapping[bytes, bytes] | None, path: str | Path) -> Source:
    if METADATA not in (metadata or {}):
        raise WeftError(f"the files in {path} were not recorded by weft: their metadata has no `weft`")
    return Source.from_json((metadata or {})[METADATA])
