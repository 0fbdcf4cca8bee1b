"""Recording many environments at once, as training steps them: from their steps to files of whole episodes.

What comes in are some steps of every environment, and then the next. What goes out to a dataset are episodes of single
environments: so the steps of each are kept until its episode has ended.

>>> import tempfile
>>> import gymnasium as gym
>>> from weft.datasets.dataset import read
>>> source = Source("mine", gym.spaces.Box(-1, 1, (1,)), gym.spaces.Discrete(2))
>>> steps = {"obs": np.zeros((3, 2, 1)), "action": np.zeros((3, 2)), "reward": np.array([[1, 2], [3, 4], [5, 6]])}
>>> steps |= {"final_obs": np.ones((3, 2, 1)), "valid": np.ones((3, 2), bool), "truncated": np.zeros((3, 2), bool)}
>>> steps["terminated"] = np.array([[False, False], [False, True], [False, False]])
>>> with tempfile.TemporaryDirectory() as folder:
...     rows = Rows(folder, source, rows=[0, 1], num_envs=2)
...     rows(steps)
...     rows.close()
...     read(folder).steps["reward"].tolist()
[2.0, 4.0, 1.0, 3.0, 5.0, 6.0]
"""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from weft.datasets.dataset import ROWS_PER_GROUP, Recorder, Source, Steps
from weft.errors import WeftError
from weft.replay.nested import Column, Structure

STEPS_AT_ONCE = 256
# What is kept in memory before it is sorted or written, where steps are large.
BYTES_AT_ONCE = 32 * 2**20


class Rows:
    """Records steps of some of a run's environments as they come, to files that are named by the first of them.

    An episode that is given up (its environment failed) is left out, as are rows that an autoreset inserted. One that
    is under way at the end is cut off there, and counts as truncated.
    """

    def __init__(self, path: str | Path, source: Source, *, rows: Sequence[int], num_envs: int):
        self._structure = Structure({**source.step, "valid": np.bool_(True)})
        each = sum(map(_bytes, self._structure.columns))
        name, group = f"rows-{min(rows):05d}", _fitting(ROWS_PER_GROUP, each)
        self._record = Recorder(path, source, name=name, group=group)
        self._rows, self._num_envs = list(rows), num_envs
        self._episodes = [0] * len(rows)
        self._under_way: list[list[list[np.ndarray]]] = [[] for _ in rows]
        self._new: list[list[np.ndarray]] = []
        self._most = _fitting(STEPS_AT_ONCE, each * len(rows))
        self._lock, self._closed = threading.Lock(), False

    def __call__(self, steps: Steps, *, anew: bool = False) -> None:
        """Record steps of each, leaves [T, B, ...], with `valid`; `anew` says that all were reset before them."""
        with self._lock:
            # A thread that nobody waits for any longer may still come here.
            if self._closed:
                return
            if anew:
                self._cut_off()
            # Whoever gives an array may use its memory again.
            self._new.append([np.array(leaf) for leaf in self._structure.flatten(steps)])
            if sum(len(leaves[0]) for leaves in self._new) >= self._most:
                self._sort()

    def close(self) -> None:
        """Record what is there, and complete the files; closing twice is harmless."""
        with self._lock:
            if not self._closed:
                self._cut_off()
                self._closed = True
                self._write(self._record.close)

    def _sort(self) -> None:
        """Share out over the environments what has come in, and record the episodes that ended."""
        new = [np.concatenate(leaves) for leaves in zip(*self._new, strict=True)]
        self._new = []
        for place in range(len(self._rows)) if new else ():
            self._under_way[place].append([leaf[:, place].copy() for leaf in new])
            self._record_whole(place)

    def _record_whole(self, place: int) -> None:
        newest = self._named(self._under_way[place][-1])
        if not (newest["terminated"] | newest["truncated"] | ~newest["valid"]).any():
            return
        leaves = [np.concatenate(parts) for parts in zip(*self._under_way[place], strict=True)]
        steps = self._named(leaves)
        valid = steps["valid"]
        # What ends an episode, or gives it up: what is not valid is itself no step of any.
        last = np.flatnonzero(steps["terminated"] | steps["truncated"] | ~valid)
        stop = int(last[-1]) + 1
        whole = np.flatnonzero(valid[last][np.searchsorted(last, np.arange(stop))])
        self._under_way[place] = [[leaf[stop:] for leaf in leaves]]
        if len(whole):
            self._hand_on(place, [leaf[whole] for leaf in leaves])

    def _hand_on(self, place: int, leaves: list[np.ndarray]) -> None:
        """Record whole episodes of one environment."""
        steps = self._structure.unflatten(leaves)
        del steps["valid"]
        ended = steps["terminated"] | steps["truncated"]
        number = self._episodes[place] + np.cumsum(ended) - ended
        self._episodes[place] += int(ended.sum())
        self._write(lambda: self._record(steps, number * self._num_envs + self._rows[place]))

    def _cut_off(self) -> None:
        """Record the episodes under way as if they were truncated."""
        self._sort()
        for place, parts in enumerate(self._under_way):
            leaves = [np.concatenate(leaves) for leaves in zip(*parts, strict=True)]
            if leaves and len(leaves[0]):
                self._named(leaves)["truncated"][-1] = True
                self._hand_on(place, leaves)
            self._under_way[place] = []

    def _named(self, leaves: list[np.ndarray]) -> dict[str, np.ndarray]:
        return dict(zip(self._structure.names, leaves, strict=True))

    def _write(self, write: Callable[[], None]) -> None:
        """Write to the files; one that fails is given up, so that nothing is left of it that cannot be read."""
        try:
            write()
        except BaseException as error:
            self._closed = True
            self._record.discard()
            if isinstance(error, OSError):
                raise WeftError(f"recording to {self._record.path} failed: {error}") from error
            raise


def _bytes(column: Column) -> int:
    return int(np.prod(column.shape)) * column.dtype.itemsize


def _fitting(most: int, size: int) -> int:
    """How many things of some size in bytes are kept at once."""
    return max(1, min(most, BYTES_AT_ONCE // size))
