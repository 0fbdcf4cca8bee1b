"""Datasets are read as they were written, in whatever parts they were written and wherever writing stopped."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import jax
import minari
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from minari.data_collector.episode_buffer import EpisodeBuffer

from weft import WeftError
from weft.datasets.dataset import Dataset, Source
from weft.datasets.load import describe, read
from weft.datasets.parquet import DatasetWriter

NESTED = gym.spaces.Dict(
    image=gym.spaces.Box(0, 255, (2, 3), np.uint8),
    rest=gym.spaces.Tuple([gym.spaces.Discrete(4), gym.spaces.MultiBinary(2)]),
)
SOURCES = (
    Source("plain", gym.spaces.Box(-np.inf, np.inf, (3,)), gym.spaces.Discrete(2)),
    Source("nested", NESTED, gym.spaces.Box(-1, 1, (2,))),
)


def steps_of(source: Source, lengths: list[int], seed: int = 0) -> dict[str, Any]:
    """Random episodes of these lengths; every second one is truncated."""
    rng, total = np.random.default_rng(seed), sum(lengths)
    last = np.zeros(total, bool)
    last[np.cumsum(lengths) - 1] = True
    steps = jax.tree.map(lambda x: rng.integers(0, 2, (total, *x.shape)).astype(x.dtype), source.step)
    terminated = last & (np.cumsum(last) % 2 == 1)
    steps |= {"terminated": terminated, "truncated": last & ~terminated}
    led_to = jax.tree.map(lambda obs: np.concatenate([obs[1:], obs[:1]]), steps["obs"])

    def final(led_to: np.ndarray, drawn: np.ndarray) -> np.ndarray:
        return np.where(last.reshape(-1, *(1 for _ in led_to.shape[1:])), drawn, led_to)

    return steps | {"final_obs": jax.tree.map(final, led_to, steps["final_obs"])}


def part(steps: dict[str, Any], start: int, stop: int) -> dict[str, Any]:
    return jax.tree.map(lambda x: x[start:stop], steps)


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


@settings(max_examples=40)
@given(
    source=st.sampled_from(SOURCES),
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=12),
    pieces=st.lists(st.integers(0, 7), min_size=1, max_size=12),
    group=st.integers(1, 12),
    file=st.integers(1, 40),
    rest=st.integers(0, 3),
)
def test_a_dataset_written_in_parts_is_read_completely(
    tmp_path_factory: pytest.TempPathFactory,
    source: Source,
    lengths: list[int],
    pieces: list[int],
    group: int,
    file: int,
    rest: int,
) -> None:
    """The steps of an unfinished episode are dropped."""
    folder = tmp_path_factory.mktemp("played") / "data"
    steps, total, at = steps_of(source, lengths), sum(lengths), 0
    with DatasetWriter(folder, source, rows_per_group=group, rows_per_file=file) as writer:
        for size in pieces:
            writer.write(part(steps, at, min(at + size, total)))
            at = min(at + size, total)
        writer.write(part(steps, at, total))
        begun = part(steps_of(source, [rest + 1]), 0, rest)
        writer.write(begun)
    found = read(folder)
    assert_same(found.steps, steps)
    assert (len(found), found.episodes) == (total, len(lengths))
    assert (describe(folder)[0].env, describe(folder)[1]) == (source.env, total)
    assert describe(folder)[0] == found.source == source
    np.testing.assert_allclose(found.returns, [x.sum() for x in np.split(steps["reward"], np.cumsum(lengths)[:-1])])
    for path in folder.iterdir():
        last = pq.read_table(path).to_pylist()[-1]
        assert last["terminated"] or last["truncated"], "a file holds whole episodes"


def test_episode_numbers_continue_across_files(tmp_path: Path) -> None:
    with DatasetWriter(tmp_path / "data", SOURCES[0], rows_per_group=1, rows_per_file=5) as writer:
        for length in (3, 4, 2):
            writer.write(steps_of(SOURCES[0], [length]))
    files = sorted((tmp_path / "data").iterdir())
    assert [path.name for path in files] == ["steps-00000.parquet", "steps-00001.parquet"]
    assert pq.read_table(tmp_path / "data").column("episode").to_pylist() == [0] * 3 + [1] * 4 + [2] * 2


def test_nested_observations_become_columns_named_by_path(tmp_path: Path) -> None:
    with DatasetWriter(tmp_path / "data", SOURCES[1]) as writer:
        writer.write(steps_of(SOURCES[1], [2, 3]))
    table = pq.read_table(tmp_path / "data")
    assert {"obs/image", "obs/rest/0", "obs/rest/1", "action", "reward", "final_obs/image"} <= set(table.column_names)
    assert table.column("final_obs/image").null_count == 3, "only where an episode ended"


def test_a_failed_recording_leaves_only_complete_files(tmp_path: Path) -> None:
    with (
        pytest.raises(KeyboardInterrupt),
        DatasetWriter(tmp_path / "data", SOURCES[0], rows_per_group=2, rows_per_file=4) as writer,
    ):
        writer.write(steps_of(SOURCES[0], [5]))
        writer.write(steps_of(SOURCES[0], [3]))
        raise KeyboardInterrupt
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["steps-00000.parquet"]
    assert len(read(tmp_path / "data")) == 5


def test_a_killed_recording_leaves_a_readable_dataset(tmp_path: Path) -> None:
    writer = DatasetWriter(tmp_path / "data", SOURCES[0], rows_per_group=2, rows_per_file=4)
    writer.write(steps_of(SOURCES[0], [5]))
    writer.write(steps_of(SOURCES[0], [3]))
    assert len(list((tmp_path / "data").iterdir())) == 2, "one is not complete"
    assert len(read(tmp_path / "data")) == 5
    writer.close()
    assert len(read(tmp_path / "data")) == 8


def test_a_folder_that_is_not_empty_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "old").touch()
    with pytest.raises(WeftError, match="already exists: give a folder that is empty"):
        DatasetWriter(tmp_path, SOURCES[0])


def test_steps_of_another_form_are_rejected(tmp_path: Path) -> None:
    writer = DatasetWriter(tmp_path / "data", SOURCES[0])
    with pytest.raises(WeftError, match="expected a step with the columns obs, action"):
        writer.write({"obs": np.zeros((2, 3))})
    with pytest.raises(WeftError, match=r"obs has shape \[4\] in each step: expected \[3\]"):
        writer.write(steps_of(SOURCES[0], [2]) | {"obs": np.zeros((2, 4))})


def test_folders_without_a_dataset_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(WeftError, match="no dataset in .*: it holds no .parquet file"):
        read(tmp_path)
    pq.write_table(pa.table({"obs": [1]}), tmp_path / "other.parquet")
    for function in (read, describe):
        with pytest.raises(WeftError, match="were not recorded by weft"):
            function(tmp_path)


def test_a_dataset_becomes_a_replay_table() -> None:
    source = SOURCES[1]
    dataset = Dataset(source, steps_of(source, [4, 5]))
    data, info = dataset.table().sample(6)
    assert data["obs"]["image"].shape == (6, 2, 3) and info.table_size == 9


def episode(number: int, length: int, *, terminated: bool, truncated: bool) -> EpisodeBuffer:
    last = np.arange(length) == length - 1
    return EpisodeBuffer(
        id=number,
        observations=np.arange(number * 10.0, number * 10.0 + length + 1)[:, None],
        actions=list(range(length)),
        rewards=[1.0] * length,
        terminations=list(last & terminated),
        truncations=list(last & truncated),
    )


@pytest.fixture
def collection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))


@pytest.mark.usefixtures("collection")
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_minari_datasets_are_read() -> None:
    ends = [{"terminated": True, "truncated": False}, {"terminated": False, "truncated": False}]
    minari.create_dataset_from_buffers(
        "weft/test-v0",
        [episode(number, 3 + number, **end) for number, end in enumerate(ends)],
        observation_space=gym.spaces.Box(-np.inf, np.inf, (1,), np.float64),
        action_space=gym.spaces.Discrete(5),
    )
    found = read("minari:weft/test-v0")
    assert describe("minari:weft/test-v0") == (found.source, 7)
    assert found.source.action_space == gym.spaces.Discrete(5)
    assert found.steps["obs"].dtype == np.float32 and found.steps["action"].dtype == np.int32
    assert found.steps["obs"][:, 0].tolist() == [0, 1, 2, 10, 11, 12, 13]
    assert found.steps["final_obs"][:, 0].tolist() == [1, 2, 3, 11, 12, 13, 14]
    assert np.flatnonzero(found.steps["terminated"]).tolist() == [2]
    assert np.flatnonzero(found.steps["truncated"]).tolist() == [6], "an episode ends where it is cut"


@pytest.mark.usefixtures("collection")
def test_unknown_minari_datasets_are_rejected() -> None:
    with pytest.raises(WeftError, match="`minari download unknown/nothing-v0` downloads it"):
        describe("minari:unknown/nothing-v0")
