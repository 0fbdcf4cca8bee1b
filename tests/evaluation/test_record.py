"""Evaluation can record the episodes that it plays."""

from pathlib import Path

import numpy as np
import pytest

import weft
from tests.envs.toy_envs import Counting
from weft.algos.ppo import PPO
from weft.cli import main
from weft.datasets.dataset import Source
from weft.datasets.load import describe, read
from weft.datasets.parquet import DatasetWriter
from weft.envs.world import World
from weft.evaluation.evaluator import Evaluator
from weft.evaluation.play import evaluate
from weft.evaluation.saved import SavedRun
from weft.evaluation.trained_params import TrainedParamsSchema
from weft.runtime.driver import Plan

SMALL = {"num_envs": 4, "horizon": 16, "hidden": (8,), "minibatches": 2}
ENV = "gymnax:CartPole-v1"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "run"
    weft.train(PPO(**SMALL), ENV, steps=64, out=out, quiet=True)
    return out


def test_the_recorded_episodes_are_those_of_the_evaluation(finished: Path, tmp_path: Path) -> None:
    run = SavedRun.open(finished)
    evaluation = evaluate(run, episodes=5, greedy=False, record=tmp_path / "data")
    dataset = read(tmp_path / "data")
    assert evaluation == evaluate(run, episodes=5, greedy=False), "recording changes nothing"
    np.testing.assert_allclose(dataset.returns, evaluation.returns)
    assert dataset.episodes == 5 and len(dataset) == sum(evaluation.lengths)
    steps, ended = dataset.steps, dataset.ended
    np.testing.assert_array_equal(steps["final_obs"][:-1][~ended[:-1]], steps["obs"][1:][~ended[:-1]])
    assert describe(tmp_path / "data")[0].env == ENV and set(np.unique(steps["action"])) == {0, 1}


@pytest.mark.parametrize("chunk", [3, 7, 128])
def test_episodes_of_a_host_environment_are_recorded_completely(tmp_path: Path, chunk: int) -> None:
    """Each episode has five steps, and each step a reward of 1 plus a tenth of the action."""
    algo, world = PPO(**SMALL), World.of(Counting, {"vector": "inprocess"})
    params = TrainedParamsSchema(algo, world).extract(Plan.of(algo, world, None).init(0))
    env = world(1)
    with DatasetWriter(tmp_path / "data", Source("counting", env.observation_space, env.action_space)) as writer:
        Evaluator(algo, world, greedy=False, chunk=chunk, record=writer.write)(params, episodes=4)
    dataset = read(tmp_path / "data")
    assert len(dataset) == 20 and dataset.episodes == 4
    np.testing.assert_allclose(dataset.steps["reward"], 1.0 + 0.1 * dataset.steps["action"], rtol=1e-5)


def test_a_run_is_recorded_and_trained_from(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = str(tmp_path / "data")
    assert main(["eval", str(finished), "--episodes", "6", "--sample", "--record", data]) == 0
    small = ["--set", "num_envs=2", "hidden=4", "batch_size=8", "updates=2"]
    assert main(["train", "bc", ENV, "--dataset", data, *small, "--steps", "32", "--out", str(tmp_path / "bc")]) == 0
    assert "32 in 2 iterations" in capsys.readouterr().out
    assert main(["eval", str(tmp_path / "bc"), "--episodes", "1"]) == 0


def error_of(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(argv) == 2
    return capsys.readouterr().err


def test_a_user_error_is_one_line(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "old").touch()
    assert "already exists: give a folder" in error_of(capsys, "eval", str(finished), "--record", str(tmp_path))
    assert "unknown field of PPO 'dataset'" in error_of(capsys, "train", "ppo", ENV, "--dataset", "x")


def test_recording_rejects_runs_with_environment_statistics(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    weft.train(PPO(**SMALL), ENV, steps=64, out=out, quiet=True, wrappers=["normalise_obs"])
    error = error_of(capsys, "eval", str(out), "--record", str(tmp_path / "data"))
    assert "trained with wrappers that gather statistics (normalise_obs)" in error and not (tmp_path / "data").exists()
