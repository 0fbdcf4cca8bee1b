"""`weft.train` returns a result, writes the run's folder, and has a summary."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from weft.algos import ALGOS
from weft.errors import WeftError
from weft.report.params import load_params
from weft.run import solved_at, summarise, summary_record, train

A2C = ALGOS["a2c"]
ENV = "gymnax:CartPole-v1"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A short run of A2C, and its updates."""
    updates = []
    out = tmp_path_factory.mktemp("runs") / "run"
    algo = A2C(num_envs=4, horizon=8)
    return train(algo, ENV, steps=4 * 8 * 20, seed=3, out=out, quiet=True, observers=[updates.append]), updates


def test_the_folder_holds_the_configuration_and_the_metrics(finished):
    result, _ = finished
    config = json.loads((result.out / "config.json").read_text())
    assert (config["algo"], config["env"], config["layout"]) == ("a2c", ENV, "fused")
    assert (config["seed"], config["steps"], config["config"]["horizon"]) == (3, 640, 8)
    rows = [json.loads(line) for line in (result.out / "metrics.jsonl").read_text().splitlines()]
    assert [row["iteration"] for row in rows] == list(range(1, 21))
    assert rows[-1]["steps"] == result.steps == 640
    assert len(list(result.out.glob("events.out.tfevents.*"))) == 1


def test_the_saved_parameters_are_those_of_the_final_state(finished):
    result, _ = finished
    loaded = load_params(result.out / "params.safetensors", like=result.state.net)
    equal = jax.tree.map(lambda a, b: np.array_equal(np.asarray(a), np.asarray(b)), loaded, result.state.net)
    assert all(jax.tree.leaves(equal))


def test_observers_get_the_metrics_of_every_iteration(finished):
    result, updates = finished
    assert sum(len(update.metrics["episode_return"][0]) for update in updates) == result.iterations == 20
    assert updates[-1].iteration == 20


def test_the_summary_record_is_valid_json(finished):
    result, _ = finished
    record = json.loads(json.dumps(summary_record(result), allow_nan=False))
    assert set(record) == {
        *("algo", "env", "layout", "engine", "seed", "steps", "iterations"),
        *("wall_s", "compile_s", "steps_per_s", "episodes", "return_mean", "out"),
        *("episodes_dropped", "evaluation", "lag", "roles"),
    }
    assert record["lag"] is None and record["roles"] is None
    assert (record["algo"], record["layout"], record["engine"]) == ("a2c", "fused", "local")
    assert record["episodes"] > 0 and record["return_mean"] > 0 and record["steps_per_s"] > 0


def test_the_summary_says_whether_the_environment_is_solved(finished):
    result, _ = finished
    assert "not solved (475 or more)" in summarise(result)
    assert ": solved (475" in summarise(dataclasses.replace(result, return_mean=480.0))
    assert "no episode finished" in summarise(dataclasses.replace(result, return_mean=None, episodes=0))
    assert "solved" not in summarise(dataclasses.replace(result, env="gymnax:Pendulum-v1"))
    assert str(result.out) in summarise(result)


def test_the_folder_and_the_summary_report_lag_and_roles(tmp_path):
    algo = A2C(num_envs=4, horizon=8)
    result = train(algo, ENV, layout="impala:actors=2", steps=4 * 8 * 20, out=tmp_path / "run", quiet=True)
    assert result.lag is not None and sum(result.lag.counts.values()) == 2 * 20
    rows = [json.loads(line) for line in (result.out / "metrics.jsonl").read_text().splitlines()]
    assert all(0 <= row["lag"] <= row["lag_max"] <= result.lag.max for row in rows)
    *_, last = [json.loads(line) for line in (result.out / "system.jsonl").read_text().splitlines()]
    assert last["total"] and last["lag/mean"] == result.lag.mean == np.mean([row["lag"] for row in rows])
    record = json.loads(json.dumps(summary_record(result), allow_nan=False))
    assert record["lag"]["max"] == result.lag.max and set(record["roles"]) == {"actor", "learner"}
    lines = summarise(result).splitlines()
    assert f"lag     mean {result.lag.mean:.1f}, max {result.lag.max}" in lines
    assert any(line.startswith("roles   actor computes ") for line in lines)
    assert any(line.startswith("        learner computes ") for line in lines)


def test_a_nan_return_is_null_in_the_record(finished):
    assert summary_record(dataclasses.replace(finished[0], return_mean=float("nan")))["return_mean"] is None


def test_a_rejected_run_leaves_no_folder(tmp_path):
    with pytest.raises(WeftError, match="CartPole-v1"):
        train(A2C(), "gymnax:CartPol-v1", out=tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_the_solved_threshold_comes_from_gymnasium():
    assert solved_at("gymnax:CartPole-v1") == 475
    assert solved_at("gymnax:Nothing-v9") is None
