"""What was learned is what is played: with its statistics, its memory, and nothing that training left behind."""

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
from weft.algos.ppo import PPO
from weft.cli import main
from weft.envs.world import World
from weft.evaluation.episodes import Evaluator
from weft.evaluation.learned import Learned, Learning, teach
from weft.evaluation.play import evaluate
from weft.evaluation.process import EvaluationProcess
from weft.evaluation.saved import SavedRun
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


def test_a_run_is_read_back_as_it_was(finished: Path) -> None:
    run = SavedRun.open(finished)
    assert run.algo == PPO(**SMALL)
    assert run.world == World.of(GYM, {"vector": "inprocess"}, ["normalise_obs"])


def test_what_is_saved_is_what_was_learned(tmp_path: Path) -> None:
    result = weft.train(PPO(**SMALL), GYM, steps=128, out=tmp_path / "run", quiet=True, wrappers=["normalise_obs"])
    found = SavedRun.open(tmp_path / "run").learned()
    assert jax.tree.all(jax.tree.map(np.array_equal, found.net, result.state.net))
    assert [leaf.shape for leaf in jax.tree.leaves(found.env)] == [(), (4,), (4,)], "count, mean and variance"
    assert float(result.state.env.wrapper.moments.count) == float(found.env.wrapper.moments.count) > 0


def test_statistics_stay_those_of_the_training(finished: Path) -> None:
    run = SavedRun.open(finished)
    seen = []
    player = Evaluator(run.algo, run.world, chunk=8, watch=seen.append)
    what = run.learned()
    player(what, episodes=2)
    for playing in seen:
        kept = player.learning.of(SimpleNamespace(net=what.net, env=playing.env)).env
        assert jax.tree.all(jax.tree.map(np.array_equal, kept, what.env))


def test_every_episode_counts_once_and_as_the_environment_says() -> None:
    # Its reward is 1 plus a tenth of the action, so a return tells which actions were taken.
    algo, world = PPO(**SMALL), World.of(Counting, {"vector": "inprocess"})
    what = Learning(algo, world).of(Plan.of(algo, world, None).init(0))
    played = Evaluator(algo, world, chunk=7)(what, episodes=5)
    assert played.lengths == (5.0,) * 5
    assert all(5.0 <= found <= 6.0 + 1e-5 for found in played.returns)
    again = Evaluator(algo, world, chunk=3)(what, episodes=5)
    assert again == played


class Leaning(eqx.Module):
    """A policy that takes the second of three actions more often than not."""

    lean: jax.Array

    def __init__(self, observation_space: Any, action_space: Any, *, key: jax.Array):
        self.lean = jnp.array([0.0, 1.0, 0.0])

    def policy(self, obs: jax.Array) -> Categorical:
        return Categorical(jnp.broadcast_to(self.lean, (*obs.shape[:-1], 3)))

    def value(self, obs: jax.Array) -> jax.Array:
        return jnp.zeros(obs.shape[:-1])


def test_greedy_play_takes_the_likeliest_action_and_sampled_play_takes_others_too() -> None:
    # Five steps of 1 plus a tenth of the action.
    algo, world = PPO(**SMALL, net=Leaning), World.of(Counting, {"vector": "inprocess"})
    what = Learning(algo, world).of(Plan.of(algo, world, None).init(0))
    greedy, sampled = (Evaluator(algo, world, greedy=greedy)(what, episodes=20) for greedy in (True, False))
    np.testing.assert_allclose(greedy.returns, 5.5, rtol=1e-5)
    assert min(sampled.returns) < 5.45 and max(sampled.returns) > 5.55


class Counter(eqx.Module):
    """Remembers how many observations it has seen in an episode, and acts by that alone."""

    unused: jax.Array

    def __init__(self, observation_space: Any, action_space: Any, *, key: jax.Array):
        self.unused = jnp.zeros(())

    def initial(self, n: int) -> jax.Array:
        return jnp.zeros((n, 1))

    def encode(self, obs: jax.Array) -> jax.Array:
        return jnp.ones_like(obs[..., :1])

    def recall(self, memory: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return memory + x, memory + x

    def policy(self, seen: jax.Array) -> Categorical:
        return Categorical(jnp.concatenate([3.5 - seen, seen - 3.5, jnp.full_like(seen, -9.0)], axis=-1))

    def value(self, seen: jax.Array) -> jax.Array:
        return seen[..., 0]


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
def test_every_episode_starts_with_nothing_remembered(autoreset: str) -> None:
    algo = PPO(**SMALL, net=Counter)
    world = World.of(Counting, {"vector": "sync", "autoreset": autoreset})
    what = Learning(algo, world).of(Plan.of(algo, world, None).init(0))
    # Three steps with the first action, and two with the second, in every episode.
    np.testing.assert_allclose(Evaluator(algo, world)(what, episodes=4).returns, 5.2, rtol=1e-5)


def test_a_run_on_a_class_of_ones_own_can_be_evaluated(tmp_path: Path) -> None:
    weft.train(PPO(**SMALL), Counting, steps=64, out=tmp_path / "run", quiet=True, env_options={"vector": "inprocess"})
    assert evaluate(SavedRun.open(tmp_path / "run"), episodes=2).lengths == (5.0, 5.0)


@dataclass(frozen=True, kw_only=True)
class Silent(PPO):
    """Does not say how to play."""

    player = weft.Algorithm.player


def test_an_algorithm_without_a_player_is_rejected_before_training(tmp_path: Path) -> None:
    with pytest.raises(WeftError, match="Silent does not say how to play what it learned: define its method `player`"):
        weft.train(Silent(**SMALL), GYM, steps=64, eval_every=64, quiet=True, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_evaluations_during_training_are_logged(tmp_path: Path) -> None:
    result = weft.train(PPO(**SMALL), GYM, steps=640, out=tmp_path / "run", quiet=True, eval_every=320, eval_episodes=2)
    lines = [json.loads(line) for line in (tmp_path / "run" / "evals.jsonl").read_text().splitlines()]
    # The first may still wait when the next is due; the last is always played.
    assert lines[-1]["steps"] == 640 and lines[-1]["return_mean"] == pytest.approx(result.evaluation)
    assert all(len(line["returns"]) == 2 for line in lines)
    alone = evaluate(SavedRun.open(tmp_path / "run"), episodes=2)
    assert list(alone.returns) == lines[-1]["returns"]


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


def test_an_evaluation_that_dies_is_told_and_training_goes_on(capsys: pytest.CaptureFixture) -> None:
    algo, world = PPO(**SMALL), World.of("gymnax:CartPole-v1")
    what = Learning(algo, world).of(Plan.of(algo, world, None).init(0))
    process = EvaluationProcess(algo, world, episodes=1)
    process.submit(64, what)
    os.kill(process._process.pid, signal.SIGKILL)
    assert process.finish() == []
    assert "the evaluation at step 64 failed: its process ended with code -9" in capsys.readouterr().err


def test_the_evaluating_process_ends_with_whoever_started_it() -> None:
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
    raise AssertionError("the evaluating process outlived its parent")


def test_teaching_replaces_what_is_known_and_nothing_else() -> None:
    state = {"mean": jnp.ones(3), "rows": jnp.zeros(4)}
    assert teach(state, {"mean": jnp.full(3, 7.0), "rows": None})["rows"] is state["rows"]
    assert teach(state, {"mean": jnp.full(3, 7.0), "rows": None})["mean"].tolist() == [7.0] * 3


def test_parameters_of_another_network_are_refused(finished: Path) -> None:
    other = PPO(**SMALL | {"hidden": (16,)})
    with pytest.raises(WeftError, match="expected"):
        Learning(other, World.of(GYM, {}, ["normalise_obs"])).load(finished / "params.safetensors")
    with pytest.raises(WeftError, match="also holds env"):
        Learning(PPO(**SMALL), World.of(GYM)).load(finished / "params.safetensors")


def test_what_is_loaded_is_what_was_saved(tmp_path: Path, finished: Path) -> None:
    run = SavedRun.open(finished)
    what = run.learned()
    what.save(tmp_path / "again.safetensors")
    again: Learned = Learning(run.algo, run.world).load(tmp_path / "again.safetensors")
    assert jax.tree.all(jax.tree.map(np.array_equal, again, what))


def test_a_film_has_a_picture_of_every_step(tmp_path: Path, finished: Path) -> None:
    film = tmp_path / "films" / "cartpole.mp4"
    played = evaluate(SavedRun.open(finished), episodes=1, video=film)
    frames, _ = imageio_ffmpeg.count_frames_and_secs(film)
    assert frames == played.lengths[0] + 1


def test_a_film_shows_the_environment(tmp_path: Path, finished: Path) -> None:
    film = tmp_path / "cartpole.gif"
    played = evaluate(SavedRun.open(finished), episodes=1, video=film)
    frames = imageio.imread(film)
    # The same picture twice is one picture for twice as long.
    assert 1 < len(frames) <= played.lengths[0] + 1
    assert frames[0].shape == (400, 600, 3) and np.ptp(frames[0]) > 100
    assert not np.array_equal(frames[0], frames[-1])


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["eval", "nowhere"], "nowhere is not a run's folder: it has no config.json"),
        (["eval", "RUN", "--video", "film.avi"], "the name must end in .mp4 or .gif"),
        (["eval", "RUN", "--episodes", "0"], "'0' is not a whole number from 1"),
    ],
)
def test_what_cannot_be_evaluated_is_said_in_one_line(finished: Path, argv: Any, message: str, capsys: Any) -> None:
    assert main([str(finished) if word == "RUN" else word for word in argv]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_eval_prints_what_was_played(finished: Path, capsys: Any) -> None:
    assert main(["eval", str(finished), "--episodes", "2", "--json"]) == 0
    played = json.loads(capsys.readouterr().out)
    assert len(played["returns"]) == 2
    assert main(["eval", str(finished), "--episodes", "2"]) == 0
    assert "the mean of 2 episodes" in capsys.readouterr().out
