"""Datasets: what was played, in files that any tool reads, and read back as a table.

A dataset is a folder of Parquet files. Each holds whole episodes, in order, one row for each step:

    obs, action, reward, terminated, truncated   what the step was; nested observations have a column for each part,
                                                 named by the path to it (`obs/camera`), arrays are flattened
    final_obs                                    where the last step of an episode led; empty in all others, for which
                                                 it is the next row's observation
    episode                                      the number of its episode: of a training, with n environments, the
                                                 k-th of environment r, both counted from 0, has the number k * n + r

What it was played on (the environment's name, its spaces) is in every file's metadata, as JSON under `weft`. A file has
its name only when it is complete: whatever happens to the program that records, what is there can be read.

>>> import tempfile
>>> space, choice = gym.spaces.Box(-1, 1, (2,)), gym.spaces.Discrete(2)
>>> steps = {"obs": np.zeros((3, 2), np.float32), "action": np.array([0, 1, 1], np.int32), "reward": np.ones(3)}
>>> steps |= {"terminated": np.array([False, False, True]), "truncated": np.zeros(3, bool), "final_obs": steps["obs"]}
>>> with tempfile.TemporaryDirectory() as folder:
...     with Recorder(folder + "/played", Source("mine", space, choice)) as record:
...         record(steps)
...     dataset = read(folder + "/played")
>>> len(dataset), dataset.episodes, dataset.table().sample(8).data["obs"].shape
(3, 1, (8, 2))
"""

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import gymnasium as gym
import jax
import numpy as np

from weft.datasets.columns import arrow, from_arrow, to_arrow
from weft.envs.space_json import space_from_json, space_to_json
from weft.envs.spaces import dtype, map_space
from weft.errors import WeftError
from weft.replay.nested import Structure
from weft.replay.table import Table

Steps = dict[str, Any]
"""Steps that follow each other, leaves [N, ...]: `obs`, `action`, `reward`, `terminated`, `truncated`, `final_obs`."""

METADATA = b"weft"
MINARI = "minari:"
ROWS_PER_GROUP = 10_000
ROWS_PER_FILE = 200_000


@dataclass(frozen=True)
class Source:
    """What was played on."""

    env: str
    observation_space: gym.Space
    action_space: gym.Space

    @property
    def step(self) -> Steps:
        """The shapes of one step."""
        obs, action = (_one(space) for space in (self.observation_space, self.action_space))
        numbers = {"reward": np.float32, "terminated": np.bool_, "truncated": np.bool_}
        flat = {name: jax.ShapeDtypeStruct((), kind) for name, kind in numbers.items()}
        return {"obs": obs, "action": action, **flat, "final_obs": obs}

    def write(self) -> str:
        spaces = {"observation_space": self.observation_space, "action_space": self.action_space}
        return json.dumps({"env": self.env, **{name: space_to_json(space) for name, space in spaces.items()}})

    @classmethod
    def read(cls, text: str | bytes) -> Self:
        found = json.loads(text)
        return cls(found["env"], *(space_from_json(found[name]) for name in ("observation_space", "action_space")))


@dataclass(frozen=True)
class Dataset:
    """What was played, all of it."""

    source: Source
    steps: Steps

    def __len__(self) -> int:
        return len(self.steps["reward"])

    @property
    def ended(self) -> np.ndarray:
        """Which steps are the last of their episode."""
        return self.steps["terminated"] | self.steps["truncated"]

    @property
    def episodes(self) -> int:
        return int(self.ended.sum())

    @property
    def returns(self) -> np.ndarray:
        """The sum of the rewards of every episode."""
        starts = np.flatnonzero(np.concatenate([[True], self.ended[:-1]]))
        return np.add.reduceat(self.steps["reward"], starts)

    def table(self, **options: Any) -> Table:
        """A table on the host with every step in it; `options` are those of `weft.replay.Table`."""
        table = Table(self.source.step, capacity=len(self), **options)
        table.insert(self.steps)
        return table


def check_new(path: str | Path) -> None:
    """Refuse what nothing can be recorded to: a folder that is in use, or any at all without the package for it."""
    arrow()
    folder = Path(path)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise WeftError(f"{folder} already exists: give a folder that is empty or does not exist yet")


class Recorder:
    """Writes steps of one environment, in order, to a new dataset; a file has its name once it is complete.

    Several may write to one folder at once if each is given a `name`, which its files then begin with.
    """

    def __init__(
        self,
        path: str | Path,
        source: Source,
        *,
        name: str | None = None,
        group: int = ROWS_PER_GROUP,
        file: int = ROWS_PER_FILE,
    ):
        if name is None:
            check_new(path)
        self.path, self.source, self.name = Path(path), source, name or "steps"
        self._structure = Structure(source.step)
        self._group, self._file = group, file
        self._waiting: list[list[np.ndarray]] = []
        self._writer: Any = None
        self._numbers = {"file": 0, "rows": 0, "episode": 0, "waiting": 0}

    def __call__(self, steps: Steps, episode: np.ndarray | None = None) -> None:
        """Record more steps, leaves [N, ...]; what belongs to no whole episode yet waits.

        Episodes are numbered as they come, unless the number of each step's is given.
        """
        leaves = [np.asarray(leaf) for leaf in self._structure.flatten(steps)]
        for leaf, column in zip(leaves, self._structure.columns, strict=True):
            if leaf.shape[1:] != column.shape:
                raise WeftError(f"{column.name} is {list(leaf.shape[1:])} in each step, and should be {column.shape}")
        ended = self._ended(leaves)
        if episode is None:
            episode = self._numbers["episode"] + np.cumsum(ended) - ended
        self._waiting.append([*leaves, episode.astype(np.int64)])
        self._numbers["episode"] += int(ended.sum())
        self._numbers["waiting"] += len(ended)
        if self._numbers["waiting"] >= self._group and ended.any():
            self._write_whole()

    def close(self) -> None:
        """Complete the last file; steps of an episode that did not end are left out."""
        self._write_whole()
        self._complete()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, *error: object) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    def discard(self) -> None:
        """Give up what is not complete."""
        if self._writer is not None:
            with contextlib.suppress(OSError):
                self._writer.close()
            self._partial.unlink(missing_ok=True)
            self._writer = None

    def _ended(self, leaves: Sequence[np.ndarray]) -> np.ndarray:
        terminated, truncated = (leaves[self._structure.names.index(name)] for name in ("terminated", "truncated"))
        return terminated.astype(bool) | truncated.astype(bool)

    def _write_whole(self) -> None:
        """Write what waits, up to the end of the last episode that has one."""
        rows = [np.concatenate(parts) for parts in zip(*self._waiting, strict=True)]
        ends = np.flatnonzero(self._ended(rows)) if rows else []
        if len(ends):
            whole = int(ends[-1]) + 1
            self._waiting = [[leaf[whole:] for leaf in rows]]
            self._numbers["waiting"] = len(rows[0]) - whole
            *leaves, episode = (leaf[:whole] for leaf in rows)
            self._write(leaves, episode)

    def _write(self, leaves: list[np.ndarray], episode: np.ndarray) -> None:
        """Add whole episodes to the file, as a row group."""
        pa, pq = arrow()
        ended = self._ended(leaves)
        named = list(zip(self._structure.columns, leaves, strict=True))
        arrays = {c.name: to_arrow(c, leaf, ~ended if _is_final(c.name) else None) for c, leaf in named}
        table = pa.table({**arrays, "episode": pa.array(episode)})
        table = table.replace_schema_metadata({METADATA: self.source.write().encode()})
        if self._writer is None:
            self.path.mkdir(parents=True, exist_ok=True)
            self._writer = pq.ParquetWriter(self._partial, table.schema, compression="zstd")
        self._writer.write_table(table)
        self._numbers["rows"] += len(ended)
        if self._numbers["rows"] >= self._file:
            self._complete()

    @property
    def _partial(self) -> Path:
        return self.path / f".{self.name}-{self._numbers['file']:05d}.{os.getpid()}.tmp"

    def _complete(self) -> None:
        if self._writer is None:
            return
        self._writer.close()
        with open(self._partial, "rb") as file:
            os.fsync(file.fileno())
        os.replace(self._partial, self.path / f"{self.name}-{self._numbers['file']:05d}.parquet")
        self._writer = None
        self._numbers |= {"file": self._numbers["file"] + 1, "rows": 0}


def look(path: str | Path) -> tuple[Source, int]:
    """What a dataset was played on, and how many steps it has; nothing of them is read."""
    if str(path).startswith(MINARI):
        from weft.datasets import minari

        return minari.look(str(path).removeprefix(MINARI))
    _, pq = arrow()
    found = [pq.ParquetFile(file).metadata for file in _files(path)]
    return _source(found[0].metadata, path), sum(each.num_rows for each in found)


def read(path: str | Path) -> Dataset:
    """The dataset in a folder; `minari:ID` is one of Minari's (see `weft.datasets.minari`)."""
    if str(path).startswith(MINARI):
        from weft.datasets import minari

        return minari.read(str(path).removeprefix(MINARI))
    pa, pq = arrow()
    table = pa.concat_tables([pq.read_table(file) for file in _files(path)])
    source = _source(table.schema.metadata, path)
    structure = Structure(source.step)
    if missing := [name for name in structure.names if name not in table.column_names]:
        raise WeftError(f"the dataset {path} lacks the columns {', '.join(missing)}")
    leaves = [from_arrow(column, table.column(column.name)) for column in structure.columns]
    steps = structure.unflatten(leaves)
    last = np.flatnonzero(steps["terminated"] | steps["truncated"])
    return Dataset(source, steps | {"final_obs": _final(steps["obs"], steps["final_obs"], last)})


def _one(space: gym.Space) -> Any:
    """The shapes of one element of a space."""
    return map_space(lambda part: jax.ShapeDtypeStruct(part.shape or (), dtype(part)), space)


def _final(obs: Any, final: Any, last: np.ndarray) -> Any:
    """Where every step led: to the next row, but at the ends of episodes."""

    def one(obs: np.ndarray, final: np.ndarray) -> np.ndarray:
        led_to = np.concatenate([obs[1:], obs[:1]])
        led_to[last] = final
        return led_to

    return jax.tree.map(one, obs, final)


def _is_final(name: str) -> bool:
    return name.split("/")[0] == "final_obs"


def _files(path: str | Path) -> list[Path]:
    found = sorted(Path(path).glob("*.parquet"))
    if not found:
        raise WeftError(
            f"no dataset in {path}: it holds no .parquet file; `weft train` and `weft eval` make one, with --record DIR"
        )
    return found


def _source(metadata: Mapping[bytes, bytes] | None, path: str | Path) -> Source:
    if METADATA not in (metadata or {}):
        raise WeftError(f"the files in {path} were not recorded by weft: their metadata has no `weft`")
    return Source.read((metadata or {})[METADATA])
