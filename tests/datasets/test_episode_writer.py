"""The whole episodes of each environment are written, in whatever parts the steps arrive."""

from pathlib import Path
from typing import Any
from unittest.mock import patch

import gymnasium as gym
import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft import WeftError
from weft.datasets import episode_writer
from weft.datasets.dataset import Source
from weft.datasets.episode_writer import EpisodeWriter
from weft.datasets.parquet import read

SOURCE = Source("game", gym.spaces.Box(-np.inf, np.inf, (1,)), gym.spaces.Discrete(3))
ROWS, NUM_ENVS = [4, 5, 6], 8
GOES_ON, TERMINATED, TRUNCATED, NOT_VALID = range(4)

kinds = st.lists(st.lists(st.sampled_from([GOES_ON] * 4 + [TERMINATED, TRUNCATED, NOT_VALID]), min_size=3, max_size=3))


def steps_of(kinds: np.ndarray) -> dict[str, Any]:
    """Steps [T, B] of these kinds; the reward identifies the step and its environment."""
    time, row = np.indices(kinds.shape)
    reward = np.asarray(1000 * row + time, np.float32)
    obs = np.expand_dims(reward, -1)
    flags = {"terminated": kinds == TERMINATED, "truncated": kinds == TRUNCATED, "valid": kinds != NOT_VALID}
    return {"obs": obs, "action": row, "reward": reward, "final_obs": obs + 1, **flags}


def episodes_of(kinds: np.ndarray) -> list[list[tuple[float, bool]]]:
    """The expected episodes of each environment: their rewards, and whether they terminated."""
    found = []
    for row, column in enumerate(kinds.T):
        episodes: list[Any] = [([], False)]
        for time, kind in enumerate(column):
            if kind == NOT_VALID:
                episodes[-1] = ([], False)
            else:
                episodes[-1][0].append(1000.0 * row + time)
            if kind in (TERMINATED, TRUNCATED):
                episodes[-1] = (episodes[-1][0], kind == TERMINATED)
                episodes.append(([], False))
        found.append([episode for episode in episodes if episode[0]])
    return found


def found_in(folder: Path) -> dict[int, tuple[list[float], bool]]:
    """The episodes in a folder by number: their rewards, and whether they terminated."""
    rows = pq.read_table(folder).to_pylist() if list(folder.glob("*.parquet")) else []
    episodes: dict[int, Any] = {}
    for row in rows:
        rewards, _ = episodes.setdefault(row["episode"], ([], False))
        rewards.append(row["reward"])
        ended = row["terminated"] or row["truncated"]
        assert ended == (row["final_obs"] is not None)
        episodes[row["episode"]] = (rewards, row["terminated"])
    return episodes


@settings(max_examples=60)
@given(kinds=kinds, pieces=st.lists(st.integers(1, 5), min_size=1), at_once=st.integers(1, 8))
def test_the_whole_episodes_of_each_environment_are_written(
    tmp_path_factory: pytest.TempPathFactory, kinds: Any, pieces: list[int], at_once: int
) -> None:
    folder = tmp_path_factory.mktemp("data")
    kinds = np.array(kinds, int).reshape(-1, len(ROWS))
    steps, at = steps_of(kinds), 0
    with patch.object(episode_writer, "BUFFERED_STEPS", at_once):
        writer = EpisodeWriter(folder, SOURCE, rows=ROWS, num_envs=NUM_ENVS)
        for size in [*pieces, len(kinds)]:
            writer.write({name: leaf[at : at + size] for name, leaf in steps.items()})
            at += size
        writer.close()
        writer.close()
    expected = {
        number * NUM_ENVS + ROWS[row]: episode
        for row, episodes in enumerate(episodes_of(kinds))
        for number, episode in enumerate(episodes)
    }
    assert found_in(folder) == expected


def test_a_restart_begins_a_new_episode(tmp_path: Path) -> None:
    steps = steps_of(np.full((2, 3), GOES_ON))
    writer = EpisodeWriter(tmp_path, SOURCE, rows=ROWS, num_envs=NUM_ENVS)
    writer.write(steps, restarted=True)
    writer.write(steps, restarted=True)
    writer.close()
    assert sorted(found_in(tmp_path)) == [4, 5, 6, 12, 13, 14] and len(read(tmp_path)) == 12


def test_the_caller_may_modify_its_arrays_afterwards(tmp_path: Path) -> None:
    steps = steps_of(np.full((2, 3), GOES_ON))
    writer = EpisodeWriter(tmp_path, SOURCE, rows=ROWS, num_envs=NUM_ENVS)
    writer.write(steps)
    steps["reward"][:] = -1.0
    writer.close()
    assert read(tmp_path).steps["reward"].min() == 0.0


def test_steps_after_close_are_ignored(tmp_path: Path) -> None:
    steps = steps_of(np.full((2, 3), TERMINATED))
    writer = EpisodeWriter(tmp_path, SOURCE, rows=ROWS, num_envs=NUM_ENVS)
    writer.write(steps)
    writer.close()
    writer.write(steps)
    assert len(read(tmp_path)) == 6


def test_a_disk_failure_leaves_a_readable_dataset(tmp_path: Path) -> None:
    steps = steps_of(np.full((4, 3), TERMINATED))
    with patch.object(episode_writer, "BUFFERED_STEPS", 1), patch.object(episode_writer, "ROWS_PER_GROUP", 1):
        writer = EpisodeWriter(tmp_path, SOURCE, rows=ROWS, num_envs=NUM_ENVS)
    writer.write(steps)
    writer._writer._complete_file()
    writer.write(steps)
    with (
        patch("pyarrow.parquet.ParquetWriter.write_table", side_effect=OSError("no space left")),
        pytest.raises(WeftError, match=r"recording to .* failed: no space left"),
    ):
        writer.write(steps)
    writer.close()
    assert len(read(tmp_path)) == 12 and len(list(tmp_path.iterdir())) == 1
