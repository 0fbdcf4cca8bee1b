"""Host environments in training runs: the same results under every layout, and errors that name the environment."""

import re
import time
from typing import Any

import numpy as np
import pytest

import weft
from tests.envs import toy_envs
from weft import WeftError
from weft.algos.ppo import PPO
from weft.cli import main
from weft.envs.pools.failures import EnvFailed
from weft.envs.world import World
from weft.host import own_objects
from weft.runtime.driver import Plan, train_in_memory
from weft.runtime.local import LocalEngine

SMALL = {"num_envs": 4, "horizon": 8, "hidden": (8,), "minibatches": 2}
CARTPOLE = World.of("gym:CartPole-v1", {"vector": "inprocess"})
PENDULUM = World.of("gym:Pendulum-v1", {"vector": "workers", "workers": 2}, ["normalise_obs", "normalise_reward"])


@pytest.mark.parametrize("layout", ["actors", "seed", "seed:envs=4"])
@pytest.mark.parametrize("world", [CARTPOLE, PENDULUM], ids=["cartpole", "pendulum in workers, normalised"])
@pytest.mark.optimised
def test_every_layout_gives_the_same_result(world: World, layout: str) -> None:
    found = weft.check(PPO(**SMALL), world, layout=layout, iterations=3)
    # The learner draws the noise and every environment has its own random stream, so replicas change no trajectory.
    # Only sums over all environments may round differently, as they are computed in parts.
    exact = found.identical or all(leaf.largest < 1e-5 for leaf in found.leaves)
    assert exact if "=" in layout and world is PENDULUM else found.identical, found.table()


@pytest.mark.parametrize("layout", ["actors:actors=2", "allreduce:workers=2", "fused:devices=2"])
def test_replicas_have_different_environments(layout: str) -> None:
    result = train_in_memory(PPO(**SMALL), CARTPOLE, layout=layout, steps=320)
    assert result.steps == 320 and result.episodes > 3
    assert result.state.env.identities[:, 0].tolist() == [0, 1, 2, 3]


def test_trajectories_do_not_depend_on_the_replica() -> None:
    """The same seed and actions give the same observations on every replica."""
    states = []
    for layout in ("fused", "seed:envs=4"):
        plan = Plan.of(PPO(**SMALL), CARTPOLE, layout)
        with own_objects():
            states.append(LocalEngine(plan.project(), barriers=True).run(plan.init(3), 4))
    np.testing.assert_array_equal(*[state.obs for state in states])


def test_a_stale_state_is_rejected() -> None:
    plan = Plan.of(PPO(**SMALL), CARTPOLE, "fused")
    engine = LocalEngine(plan.project())
    with own_objects():
        state = plan.init(0)
        engine.run(engine.run(state, 1), 1)
        with pytest.raises(WeftError, match="gym:CartPole-v1 is from call 1, but its environments are at call"):
            engine.run(state, 1)


def failing(env: Any, **options: Any) -> World:
    return World.of(env, {"vector": "inprocess"} | options)


@pytest.mark.parametrize("layout", ["fused", "actors:actors=2"])
@pytest.mark.parametrize(
    ("env", "cause"),
    [(toy_envs.Raising, "out of paint"), (toy_envs.NaNObservation, "NaN"), (toy_envs.WrongShape, "shape")],
)
def test_a_failure_names_role_environment_seed_and_step(env: Any, cause: str, layout: str) -> None:
    with pytest.raises(EnvFailed, match=cause) as caught:
        train_in_memory(PPO(**SMALL), failing(env), layout=layout, steps=3200)
    said = str(caught.value)
    assert re.search(rf"role \w+\[\d\]: .*{env.__name__}: environment \d \(seed \d+\) failed at its step \d+", said)


def test_an_error_names_the_environment_that_hangs_in_this_process() -> None:
    began = time.monotonic()
    with pytest.raises(
        EnvFailed, match=r"Hanging: environment \d \(seed \d+\) failed at its step \d+ .*no answer for 1 s"
    ):
        train_in_memory(PPO(**SMALL), failing(toy_envs.Hanging, timeout=1), layout="actors", steps=3200)
    assert time.monotonic() - began < 60


@pytest.mark.parametrize(
    ("env", "steps", "options"),
    [
        (toy_envs.Raising, 640, {}),
        (toy_envs.NaNReward, 640, {}),
        (toy_envs.Dying, 320, {"vector": "workers", "workers": 2}),
        (toy_envs.Hanging, 64, {"vector": "workers", "workers": 4, "timeout": 0.5}),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_with_restarts_training_continues_and_counts_dropped_episodes(env: Any, steps: int, options: Any) -> None:
    result = train_in_memory(PPO(**SMALL), failing(env, on_error="restart", **options), steps=steps)
    assert result.steps == steps
    assert result.episodes_dropped > 0


def test_on_env_error_is_a_flag_of_the_command_line(tmp_path: Any, capsys: Any) -> None:
    small = ["--set", "num_envs=4", "horizon=8", "minibatches=2", "--steps", "320", "--out"]
    bad = ["train", "ppo", "tests.envs.toy_envs:Raising", "--env-set", "vector=inprocess"]
    assert main([*bad, *small, str(tmp_path / "stops")]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("weft: error: role all[0]: tests.envs.toy_envs:Raising: environment ")
    assert main([*bad, "--on-env-error", "restart", *small, str(tmp_path / "goes on")]) == 0
    assert "because their environment failed" in capsys.readouterr().out


def test_a_class_or_function_can_be_trained_on() -> None:
    result = train_in_memory(PPO(**SMALL), toy_envs.Terminating, steps=320)
    assert result.env == "Terminating" and result.episodes == 320 // toy_envs.LENGTH
    result = train_in_memory(PPO(**SMALL), lambda: toy_envs.Terminating(length=4), steps=320)
    assert result.episodes == 320 // 4


@pytest.mark.parametrize("env", [toy_envs.Nested, toy_envs.MaskingMany, toy_envs.Offset, toy_envs.Bounded])
def test_every_kind_of_space_can_be_trained_on(env: Any) -> None:
    assert train_in_memory(PPO(**SMALL), env, layout="actors:actors=2", steps=64).steps == 64
