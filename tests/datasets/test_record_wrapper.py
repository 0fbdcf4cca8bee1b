"""Recording stores the steps of a training run, under any layout, and does not change the run."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import weft
from tests.envs.toy_envs import Counting, Nested
from tests.runtime.slope import Slope
from weft import TimeStep, WeftError
from weft.algorithm import Algorithm
from weft.algos.a2c import A2C
from weft.algos.dqn import DQN
from weft.cli import main
from weft.datasets.load import describe, read
from weft.datasets.record_wrapper import remove_recording
from weft.envs import make
from weft.envs.world import World
from weft.envs.wrappers import frame_stack, normalise_obs
from weft.evaluation.evaluator import Evaluator
from weft.evaluation.play import evaluate
from weft.evaluation.saved import SavedRun
from weft.evaluation.trained_params import TrainedParamsSchema
from weft.host import own_objects
from weft.run import record_training
from weft.runtime.check import compare_leaf
from weft.runtime.driver import Plan
from weft.runtime.local import LocalEngine

ENV = "gymnax:CartPole-v1"
SMALL = A2C(num_envs=4, horizon=8, hidden=(8,))
SIZE = 4 * 8


class Pushed(Slope):
    """A slope environment that accepts the argument `last`, so that it can be wrapped."""

    def step(self, state: Any, action: jax.Array, key: jax.Array, last: None = None) -> tuple[Any, TimeStep]:
        return super().step(state, action, key)


def end_of(world: World, layout: str, *, algo: Algorithm = SMALL, iterations: int = 6) -> Any:
    """The state after some iterations, computed with barriers so that layouts are comparable."""
    plan = Plan.of(algo, world, layout)
    with own_objects():
        return remove_recording(LocalEngine(plan.project(), barriers=True).run(plan.init(0), iterations))


def play(env: Any, folder: Path, layout: str, *, wrappers: tuple[str, ...] = (), **options: Any) -> pa.Table:
    """The recorded steps of some iterations, ordered by episode number."""
    end_of(record_training(SMALL, World.of(env, options, wrappers), folder), layout)
    found = pq.read_table(folder)
    return found.take(pa.array(np.argsort(found.column("episode").to_numpy(), kind="stable")))


def assert_whole(folder: Path) -> None:
    """Check that the steps of each episode are contiguous up to its end."""
    steps = read(folder).steps
    inside = ~(steps["terminated"] | steps["truncated"])[:-1]
    episode = pq.read_table(folder).column("episode").to_numpy()
    np.testing.assert_array_equal(episode[1:][inside], episode[:-1][inside])
    assert (episode[1:][~inside] != episode[:-1][~inside]).all()


@pytest.fixture(scope="module")
def fused(tmp_path_factory: pytest.TempPathFactory) -> pa.Table:
    folder = tmp_path_factory.mktemp("fused") / "data"
    played = play(ENV, folder, "fused")
    assert_whole(folder)
    return played


@pytest.mark.parametrize("layout", ["actors", "seed", "allreduce"])
def test_every_layout_records_the_same_dataset_as_fused(fused: pa.Table, layout: str, tmp_path: Path) -> None:
    assert len(fused) == 6 * SIZE and fused.equals(play(ENV, tmp_path / "data", layout))
    assert {0, 1, 2, 3} <= set(fused.column("episode").to_pylist()), "the first of each environment"


@pytest.mark.parametrize(("env", "options"), [(Pushed, {}), (Counting, {"vector": "inprocess"})])
def test_several_replicas_record_the_same_dataset_as_one(env: Any, options: dict[str, Any], tmp_path: Path) -> None:
    """For environments that do not depend on their replica; each replica writes its own files."""
    fused = play(env, tmp_path / "fused", "fused", **options)
    assert len(fused) == 6 * SIZE and fused.equals(play(env, tmp_path / "two", "seed:envs=2", **options))
    names = sorted(path.name for path in (tmp_path / "two").iterdir())
    assert names == ["rows-00000-00000.parquet", "rows-00002-00000.parquet"]


@pytest.mark.parametrize("layout", ["actors:actors=2", "allreduce:workers=2", "fused:devices=2", "impala:actors=2"])
def test_every_step_of_a_replica_is_recorded(layout: str, tmp_path: Path) -> None:
    result = weft.train(SMALL, ENV, layout=layout, steps=6 * SIZE, record=tmp_path / "data", out=tmp_path / "run")
    assert len(read(tmp_path / "data")) == result.steps == 6 * SIZE
    assert_whole(tmp_path / "data")


def test_asynchronous_actors_are_recorded(tmp_path: Path) -> None:
    algo = DQN(num_envs=4, hidden=(8,), batch_size=8, warm_up_steps=32)
    folder, out = tmp_path / "data", tmp_path / "run"
    result = weft.train(algo, ENV, layout="apex:actors=2", steps=200, record=folder, out=out, quiet=True)
    assert len(read(folder)) >= result.steps
    assert_whole(folder)


def test_recording_happens_inside_the_wrappers(tmp_path: Path) -> None:
    wrappers = ("time_limit=3", "frame_stack=2", "normalise_obs", "normalise_reward")
    played = play(Counting, tmp_path / "data", "fused", wrappers=wrappers, vector="inprocess")
    found = read(tmp_path / "data")
    reward = 1.0 + 0.1 * found.steps["action"]
    np.testing.assert_allclose(found.steps["reward"], reward, rtol=1e-6, err_msg="as the environment gave it")
    assert found.steps["obs"].shape == (6 * SIZE, 2) and set(found.steps["obs"][:, 1]) == {0, 1, 2}
    assert not found.steps["terminated"].any() and len(played) / found.episodes <= 3


def test_nested_observations_are_recorded(tmp_path: Path) -> None:
    played = play(Nested, tmp_path / "data", "seed:envs=2", vector="inprocess")
    assert len(played) == 6 * SIZE and any("/" in name for name in played.column_names)
    assert describe(tmp_path / "data")[0].observation_space == Nested.observation_space


@pytest.mark.parametrize(
    "env", [ENV, *(pytest.param(each, marks=pytest.mark.full) for each in ("gymnax:Pendulum-v1", Counting))]
)
def test_recording_does_not_change_the_training(env: Any, tmp_path: Path) -> None:
    world = World.of(env, wrappers=["normalise_obs"])
    plain, watched = end_of(world, "fused"), end_of(record_training(SMALL, world, tmp_path / "data"), "fused")
    assert jax.tree.structure(plain) == jax.tree.structure(watched)
    leaves = zip(jax.tree.leaves(plain), jax.tree.leaves(watched), strict=True)
    assert not [leaf for leaf in leaves if compare_leaf("", *leaf).differing]


def test_an_evaluation_is_not_recorded(tmp_path: Path) -> None:
    world = record_training(SMALL, World.of(ENV, wrappers=["normalise_obs"]), tmp_path / "data")
    what = TrainedParamsSchema(SMALL, world).extract(Plan.of(SMALL, world, None).init(0))
    assert Evaluator(SMALL, world)(what, episodes=2).returns
    assert not (tmp_path / "data").exists()


def test_a_recorded_run_can_be_saved_evaluated_and_trained_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its saved state contains no recording, and another run trains from the dataset."""
    data, out = str(tmp_path / "data"), str(tmp_path / "run")
    small = ["--set", "num_envs=4", "horizon=8", "hidden=8", "--steps", str(4 * SIZE)]
    assert main(["train", "a2c", ENV, *small, "--wrap", "normalise_obs", "--record", data, "--out", out]) == 0
    assert len(evaluate(SavedRun.open(out), episodes=2).returns) == 2
    assert describe(data)[0].env == ENV
    small = ["--set", "num_envs=2", "hidden=4", "batch_size=8", "updates=2", "--steps", "32"]
    assert main(["train", "bc", ENV, "--dataset", data, *small, "--out", str(tmp_path / "bc")]) == 0
    assert "32 in 2 iterations" in capsys.readouterr().out


def test_an_interrupted_run_leaves_its_steps_in_the_dataset(tmp_path: Path) -> None:
    def interrupt(update: Any) -> None:
        if update.steps >= 4 * SIZE:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        weft.train(
            *(SMALL, ENV),
            steps=10**6,
            record=tmp_path / "data",
            out=tmp_path / "run",
            quiet=True,
            observers=[interrupt],
        )
    found = read(tmp_path / "data")
    assert len(found) >= 4 * SIZE and len(found) % SIZE == 0
    assert {path.suffix for path in (tmp_path / "data").iterdir()} == {".parquet"}
    assert_whole(tmp_path / "data")


def error_of(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(argv) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_user_errors_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "file").touch()
    assert "old already exists: give a folder" in error_of(capsys, "train", "ppo", ENV, "--record", "old")
    assert "bc takes no steps in its environment" in error_of(capsys, "train", "bc", ENV, "--record", "new")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert "pip install 'weft[offline]'" in error_of(capsys, "train", "ppo", ENV, "--record", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


def test_environments_inside_wrappers_with_statistics_are_rejected(tmp_path: Path) -> None:
    """An environment's own wrappers, without statistics, are recorded too."""
    with pytest.raises(WeftError, match="NormaliseObs learns statistics, and these are not part of a dataset"):
        record_training(SMALL, World.of(lambda num_envs: normalise_obs(make(ENV, num_envs))), tmp_path / "data")
    play(lambda num_envs: frame_stack(make(ENV, num_envs), 3), tmp_path / "data", "fused")
    assert read(tmp_path / "data").steps["obs"].shape == (6 * SIZE, 12)


class Silent(A2C):
    """An algorithm that never calls `episodes`."""

    def step(self, env: Any, state: Any) -> Any:
        after, _ = env.step(state.env, jnp.zeros(env.num_envs, int), state.key)
        return replace(state, env=after), {}


def test_an_algorithm_must_call_episodes_once(tmp_path: Path) -> None:
    with pytest.raises(WeftError, match="silent calls env.episodes 0 times in an iteration"):
        record_training(Silent(num_envs=4), World.of(ENV), tmp_path / "data")
