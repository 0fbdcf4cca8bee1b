"""Evaluation plays the trained policy with its environment statistics, and with a fresh memory in every episode."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import equinox as eqx
import imageio.v3 as imageio
import imageio_ffmpeg
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import weft
from tests.envs.toy_envs import Counting
from weft import WeftError
from weft.algos.on_policy import State
from weft.algos.ppo import PPO
from weft.cli import main
from weft.envs.world import World
from weft.evaluation.evaluator import EpisodeState, Evaluator
from weft.evaluation.play import evaluate
from weft.evaluation.process import EvaluationProcess
from weft.evaluation.saved import SavedRun
from weft.evaluation.trained_params import TrainedParams, TrainedParamsSchema, set_env_statistics
from weft.ops.distributions import Categorical
from weft.runtime.driver import Plan

SMALL = {"num_envs": 4, "horizon": 16, "hidden": (8,), "minibatches": 2}
GYM = "gym:CartPole-v1"


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "run"
    weft.train(
        PPO(**SMALL),
        GYM,
        steps=640,
        out=out,
        quiet=True,
        wrappers=["normalise_obs"],
        env_options={"vector": "inprocess"},
    )
    return out


def test_opening_a_run_restores_its_algorithm_and_environment(finished: Path) -> None:
    run = SavedRun.open(finished)
    assert run.algo == PPO(**SMALL)
    assert run.world == World.of(GYM, {"vector": "inprocess"}, ["normalise_obs"])


def test_a_run_saves_its_network_and_environment_statistics(tmp_path: Path) -> None:
    result = weft.train(PPO(**SMALL), GYM, steps=128, out=tmp_path / "run", quiet=True, wrappers=["normalise_obs"])
    loaded = SavedRun.open(tmp_path / "run").load_params()
    assert jax.tree.all(jax.tree.map(np.array_equal, loaded.net, result.state.net))
    shapes = [leaf.shape for leaf in jax.tree.leaves(loaded.env_statistics)]
    assert shapes == [(), (4,), (4,)], "count, mean and variance"
    assert float(result.state.env.wrapper.moments.count) == float(loaded.env_statistics.wrapper.moments.count) > 0


def test_evaluation_does_not_change_the_environment_statistics(finished: Path) -> None:
    run = SavedRun.open(finished)
    states: list[EpisodeState] = []
    evaluator = Evaluator(run.algo, run.world, chunk=8, on_chunk=states.append)
    params = run.load_params()
    evaluator(params, episodes=2)
    for state in states:
        statistics = evaluator.schema.extract(SimpleNamespace(net=params.net, env=state.env)).env_statistics
        assert jax.tree.all(jax.tree.map(np.array_equal, statistics, params.env_statistics))


def test_returns_and_lengths_are_those_of_the_environment_whatever_the_chunk() -> None:
    # The reward is 1 plus a tenth of the action, so a return shows which actions were taken.
    algo, world = PPO(**SMALL), World.of(Counting, {"vector": "inprocess"})
    params = TrainedParamsSchema(algo, world).extract(Plan.of(algo, world, None).init(0))
    evaluation = Evaluator(algo, world, chunk=7)(params, episodes=5)
    assert evaluation.lengths == (5.0,) * 5
    assert all(5.0 <= episode_return <= 6.0 + 1e-5 for episode_return in evaluation.returns)
    assert Evaluator(algo, world, chunk=3)(params, episodes=5) == evaluation


class PrefersSecond(eqx.Module):
    """A policy whose most likely action is the second of three."""

    logits: jax.Array

    def __init__(self, observation_space: Any, action_space: Any, *, key: jax.Array):
        self.logits = jnp.array([0.0, 1.0, 0.0])

    def policy(self, obs: jax.Array) -> Categorical:
        return Categorical(jnp.broadcast_to(self.logits, (*obs.shape[:-1], 3)))

    def value(self, obs: jax.Array) -> jax.Array:
        return jnp.zeros(obs.shape[:-1])


def test_greedy_evaluation_takes_the_most_likely_action_and_sampled_evaluation_also_others() -> None:
    # Five steps with reward 1 plus a tenth of the action.
    algo, world = PPO(**SMALL, net=PrefersSecond), World.of(Counting, {"vector": "inprocess"})
    params = TrainedParamsSchema(algo, world).extract(Plan.of(algo, world, None).init(0))
    greedy, sampled = (Evaluator(algo, world, greedy=greedy)(params, episodes=20) for greedy in (True, False))
    np.testing.assert_allclose(greedy.returns, 5.5, rtol=1e-5)
    assert min(sampled.returns) < 5.45 and max(sampled.returns) > 5.55


class Counter(eqx.Module):
    """A recurrent policy that counts the steps of an episode and acts by that count alone."""

    unused: jax.Array

    def __init__(self, observation_space: Any, action_space: Any, *, key: jax.Array):
        self.unused = jnp.zeros(())

    def initial(self, n: int) -> jax.Array:
        return jnp.zeros((n, 1))

    def encode(self, obs: jax.Array) -> jax.Array:
        return jnp.ones_like(obs[..., :1])

    def recall(self, memory: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return memory + x, memory + x

    def policy(self, count: jax.Array) -> Categorical:
        return Categorical(jnp.concatenate([3.5 - count, count - 3.5, jnp.full_like(count, -9.0)], axis=-1))

    def value(self, count: jax.Array) -> jax.Array:
        return count[..., 0]


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
def test_the_memory_is_reset_at_the_start_of_every_episode(autoreset: str) -> None:
    algo = PPO(**SMALL, net=Counter)
    world = World.of(Counting, {"vector": "sync", "autoreset": autoreset})
    params = TrainedParamsSchema(algo, world).extract(Plan.of(algo, world, None).init(0))
    # Every episode takes the first action three times, then the second twice.
    np.testing.assert_allclose(Evaluator(algo, world)(params, episodes=4).returns, 5.2, rtol=1e-5)


def test_a_run_on_a_user_defined_environment_can_be_evaluated(tmp_path: Path) -> None:
    weft.train(PPO(**SMALL), Counting, steps=64, out=tmp_path / "run", quiet=True, env_options={"vector": "inprocess"})
    assert evaluate(SavedRun.open(tmp_path / "run"), episodes=2).lengths == (5.0, 5.0)


@dataclass(frozen=True, kw_only=True)
class Silent(PPO):
    """An algorithm that does not define `player`."""

    player = weft.Algorithm.player


def test_an_algorithm_without_a_player_is_rejected_before_training(tmp_path: Path) -> None:
    with pytest.raises(WeftError, match="Silent cannot be evaluated: define its method `player`"):
        weft.train(Silent(**SMALL), GYM, steps=64, eval_every=64, quiet=True, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_evaluations_during_training_are_logged(tmp_path: Path) -> None:
    result = weft.train(PPO(**SMALL), GYM, steps=640, out=tmp_path / "run", quiet=True, eval_every=320, eval_episodes=2)
    lines = [json.loads(line) for line in (tmp_path / "run" / "evals.jsonl").read_text().splitlines()]
    # A newer request replaces one that waits, so the first may be missing; the last is always evaluated.
    assert lines[-1]["steps"] == 640 and lines[-1]["return_mean"] == pytest.approx(result.evaluation)
    assert all(len(line["returns"]) == 2 for line in lines)
    afterwards = evaluate(SavedRun.open(tmp_path / "run"), episodes=2)
    assert list(afterwards.returns) == lines[-1]["returns"]


def test_evaluation_does_not_change_training(tmp_path: Path) -> None:
    run: dict[str, Any] = {"steps": 640, "quiet": True}
    evaluated = weft.train(
        PPO(**SMALL), "gymnax:CartPole-v1", **run, out=tmp_path / "evaluated", eval_every=100, eval_episodes=1
    )
    plain = weft.train(PPO(**SMALL), "gymnax:CartPole-v1", **run, out=tmp_path / "plain")
    assert plain.evaluation is None
    assert jax.tree.all(jax.tree.map(np.array_equal, evaluated.state.net, plain.state.net))


@pytest.mark.parametrize("settings", [{"eval_every": 0}, {"eval_every": 64, "eval_episodes": 0}])
def test_evaluation_settings_below_1_are_rejected(settings: dict[str, int], tmp_path: Path) -> None:
    with pytest.raises(WeftError, match="both must be at least 1"):
        weft.train(PPO(**SMALL), GYM, steps=64, **settings, quiet=True, out=tmp_path / "run")


def test_a_killed_evaluation_process_is_reported_and_training_continues(capsys: pytest.CaptureFixture) -> None:
    algo, world = PPO(**SMALL), World.of("gymnax:CartPole-v1")
    params = TrainedParamsSchema(algo, world).extract(Plan.of(algo, world, None).init(0))
    process = EvaluationProcess(algo, world, episodes=1)
    process.submit(64, params)
    os.kill(process._process.pid, signal.SIGKILL)
    assert process.finish() == []
    assert "the evaluation at step 64 failed: its process ended with code -9" in capsys.readouterr().err


def test_the_evaluation_process_ends_when_its_parent_is_killed() -> None:
    code = (
        "import os, time\n"
        "from weft.algos.ppo import PPO\nfrom weft.envs.world import World\n"
        "from weft.evaluation.process import EvaluationProcess\n"
        "process = EvaluationProcess(PPO(num_envs=2), World.of('gymnax:CartPole-v1'), episodes=1)\n"
        "print(process._process.pid, flush=True)\ntime.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout:
        child = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    for _ in range(300):
        if not Path(f"/proc/{child}").exists() or "Z" in Path(f"/proc/{child}/stat").read_text().split()[2]:
            return
        time.sleep(0.1)
    os.kill(child, signal.SIGKILL)
    raise AssertionError("the evaluation process outlived its parent")


def test_setting_the_statistics_replaces_only_the_statistics() -> None:
    state = {"mean": jnp.ones(3), "rows": jnp.zeros(4)}
    changed = set_env_statistics(state, {"mean": jnp.full(3, 7.0), "rows": None})
    assert changed["rows"] is state["rows"]
    assert changed["mean"].tolist() == [7.0] * 3


def test_parameters_of_another_network_are_rejected(finished: Path) -> None:
    other = PPO(**SMALL | {"hidden": (16,)})
    with pytest.raises(WeftError, match="expected"):
        TrainedParamsSchema(other, World.of(GYM, {}, ["normalise_obs"])).load(finished / "params.safetensors")
    with pytest.raises(WeftError, match="also holds env"):
        TrainedParamsSchema(PPO(**SMALL), World.of(GYM)).load(finished / "params.safetensors")


def test_trained_params_survive_saving_and_loading(tmp_path: Path, finished: Path) -> None:
    run = SavedRun.open(finished)
    params = run.load_params()
    params.save(tmp_path / "again.safetensors")
    again: TrainedParams = TrainedParamsSchema(run.algo, run.world).load(tmp_path / "again.safetensors")
    assert jax.tree.all(jax.tree.map(np.array_equal, again, params))


class DictState(PPO):
    """PPO with a dictionary as its state."""

    def init(self, env: Any, key: jax.Array) -> Any:
        return vars(super().init(env, key))

    def step(self, env: Any, state: Any) -> Any:
        state, metrics = super().step(env, State(**state))
        return vars(state), metrics


def test_an_algorithm_whose_state_is_a_dictionary_is_saved_and_evaluated(tmp_path: Path) -> None:
    result = weft.train(DictState(**SMALL), GYM, steps=64, out=tmp_path / "run", quiet=True, eval_every=64)
    params = TrainedParamsSchema(DictState(**SMALL), World.of(GYM)).load(tmp_path / "run" / "params.safetensors")
    assert jax.tree.all(jax.tree.map(np.array_equal, params.net, result.state["net"]))
    assert result.evaluation is not None


def test_a_video_has_a_frame_for_every_step(tmp_path: Path, finished: Path) -> None:
    video = tmp_path / "videos" / "cartpole.mp4"
    evaluation = evaluate(SavedRun.open(finished), episodes=1, video=video)
    frames, _ = imageio_ffmpeg.count_frames_and_secs(video)
    assert frames == evaluation.lengths[0] + 1


def test_a_video_shows_the_environment(tmp_path: Path, finished: Path) -> None:
    video = tmp_path / "cartpole.gif"
    evaluation = evaluate(SavedRun.open(finished), episodes=1, video=video)
    frames = imageio.imread(video)
    # A GIF stores two equal frames as one of double duration.
    assert 1 < len(frames) <= evaluation.lengths[0] + 1
    assert frames[0].shape == (400, 600, 3) and np.ptp(frames[0]) > 100
    assert not np.array_equal(frames[0], frames[-1])


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["eval", "nowhere"], "nowhere is not a run's folder: it has no config.json"),
        (["eval", "RUN", "--video", "video.avi"], "the name must end in .mp4 or .gif"),
        (["eval", "RUN", "--episodes", "0"], "'0' is not a whole number from 1"),
    ],
)
def test_an_evaluation_error_is_one_line(finished: Path, argv: Any, message: str, capsys: Any) -> None:
    assert main([str(finished) if word == "RUN" else word for word in argv]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_eval_prints_the_returns(finished: Path, capsys: Any) -> None:
    assert main(["eval", str(finished), "--episodes", "2", "--json"]) == 0
    evaluation = json.loads(capsys.readouterr().out)
    assert len(evaluation["returns"]) == 2
    assert main(["eval", str(finished), "--episodes", "2"]) == 0
    assert "the mean of 2 episodes" in capsys.readouterr().out
