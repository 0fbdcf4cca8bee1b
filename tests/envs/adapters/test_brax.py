import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tests.envs.toy_brax  # noqa: F401, registers a ball
from weft.envs.adapters import brax
from weft.errors import WeftError


def pushed(env, pushes, key):
    """Applies the same pushes to every ball. Returns the state and the time steps."""
    state, _ = env.reset(key)
    step, steps = jax.jit(env.step), []
    for push, key_t in zip(pushes, jax.random.split(key, len(pushes)), strict=True):
        state, timestep = step(state, jnp.full((env.num_envs, 1), push), key_t)
        steps.append(timestep)
    return state, steps


def test_the_time_limit_truncates_and_an_end_terminates(key):
    env = brax.make("ball", 3, episode_length=4)
    _, steps = pushed(env, [1.0, -1.0, 1.0, -1.0, 1.0, 1.0, 1.0, 0.0], key)
    assert [step.truncated.tolist() for step in steps] == [[t == 3] * 3 for t in range(8)]
    assert sum(step.terminated.astype(int) for step in steps).tolist() == [1] * 3
    assert sum(step.terminated.astype(int) for step in steps[5:7]).tolist() == [1] * 3


def test_termination_wins_over_the_time_limit(key):
    _, steps = pushed(brax.make("ball", 3, episode_length=3), [1.0] * 3, key)
    ends = [(step.terminated.tolist(), step.truncated.tolist()) for step in steps[1:]]
    for early, (at_terminated, at_truncated) in zip(ends[0][0], zip(*ends[1], strict=True), strict=True):
        assert (early, at_terminated, at_truncated) in [(True, False, False), (False, True, False)]


@pytest.mark.parametrize("fresh", [True, False])
def test_the_final_observation_is_returned(fresh, key):
    env = brax.make("ball", 3, episode_length=2, fresh=fresh)
    _, first = env.reset(key)
    _, steps = pushed(env, [0.5, 0.5, 0.5], key)
    np.testing.assert_allclose(steps[1].final_obs[:, 0], first[:, 0] + 1.0, rtol=1e-5)
    np.testing.assert_allclose(steps[2].final_obs[:, 0], steps[1].obs[:, 0] + 0.5, rtol=1e-5)
    assert (np.abs(steps[1].obs) <= 0.5).all()


def test_with_fresh_every_episode_has_a_new_initial_state(key):
    env = brax.make("ball", 3, episode_length=1)
    _, first = env.reset(key)
    state, steps = pushed(env, [0.5] * 3, key)
    starts = np.concatenate([first, *(step.obs for step in steps)])
    assert len(np.unique(starts, axis=0)) == len(starts)
    assert state.initial == ()


def test_without_fresh_every_episode_has_the_same_initial_state(key):
    env = brax.make("ball", 3, episode_length=2, fresh=False)
    _, first = env.reset(key)
    _, steps = pushed(env, [0.5] * 4, key)
    for step in (steps[1], steps[3]):
        np.testing.assert_array_equal(step.obs, first)


@pytest.mark.parametrize("fresh", [True, False])
def test_a_last_step_truncates_and_restarts_the_episode(fresh, key):
    env = brax.make("ball", 3, fresh=fresh)
    state, first = env.reset(key)
    action, last = jnp.full((3, 1), 0.7), jnp.array([True, False, False])
    state, timestep = env.step(state, action, key, last)
    assert timestep.truncated.tolist() == last.tolist() and state.time.tolist() == [0, 1, 1]
    np.testing.assert_allclose(timestep.final_obs[:, 0], first[:, 0] + 0.7, rtol=1e-5)
    np.testing.assert_array_equal(timestep.obs[1:], timestep.final_obs[1:])
    assert abs(timestep.obs[0, 0]) <= 0.5


def test_no_reset_is_computed_if_no_episode_ends(key):
    """The reset is inside a branch: outside of it, a step draws no random numbers."""
    env = brax.make("ball", 3)
    state, _ = env.reset(key)
    jaxpr = jax.make_jaxpr(lambda *given: type(env).step.__wrapped__(env, *given))(state, jnp.zeros((3, 1)), key)
    outside = [eqn.primitive.name for eqn in jaxpr.eqns]
    assert outside.count("cond") == 1 and not any(name.startswith("random") for name in outside)


@pytest.mark.filterwarnings("ignore:Accessing:DeprecationWarning")
def test_steps_equal_those_of_brax(key):
    env = brax.make("inverted_pendulum", 2, backend="spring", fresh=False)
    robot = brax._load("inverted_pendulum", (("backend", "spring"),)).env
    theirs = jax.jit(jax.vmap(robot.reset))(jax.random.split(key, 2))
    state, obs = jax.jit(env.reset)(key)
    np.testing.assert_allclose(obs, theirs.obs, rtol=1e-6)
    ours, step = jax.jit(env.step), jax.jit(jax.vmap(robot.step))
    for _ in range(30):
        action = jnp.ones((2, 1))
        theirs, (state, timestep) = step(theirs, action), ours(state, action, key)
        np.testing.assert_allclose(timestep.final_obs, theirs.obs, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(timestep.terminated, theirs.done.astype(bool))
        if timestep.terminated.any():
            break
    assert timestep.terminated.any() and (np.abs(timestep.obs) <= 0.011).any(axis=-1)[timestep.terminated].all()


def test_an_environment_first_used_inside_a_trace_leaks_nothing(key):
    brax._load.cache_clear()
    env = brax.BraxEnv("inverted_pendulum", 2, fresh=True, episode_length=9, options=(("backend", "spring"),))
    first = jax.jit(lambda key: env.reset(key)[1])(key)
    second = jax.jit(lambda key: env.reset(key)[1] + 0)(key)
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize(
    ("env_id", "options", "message"),
    [
        ("ants", {}, "unknown brax environment 'ants': did you mean 'ant'"),
        ("ant", {"episode_length": 0}, "episode_length is 0"),
        ("ant", {"backend": "bullet"}, "brax:ant does not take backend='bullet'"),
        ("ant", {"wheels": 4}, "brax:ant does not take wheels=4"),
    ],
)
def test_invalid_ids_and_options_are_rejected(env_id, options, message):
    with pytest.raises(WeftError, match=message):
        brax.make(env_id, 2, **options)


def test_every_brax_environment_has_a_description():
    assert set(brax.available()) == set(brax._brax()._envs) - {"ball"}


def test_the_error_without_brax_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "brax", None)
    monkeypatch.setitem(sys.modules, "brax.envs", None)
    brax._brax.cache_clear()
    with pytest.raises(WeftError, match=r"pip install 'weft\[brax\]'"):
        brax.make("ant", 2)


def test_making_an_environment_prints_nothing(tmp_path):
    code = "from weft.envs.adapters import brax; brax.make('halfcheetah', 2)"
    command = [sys.executable, "-W", "default::DeprecationWarning:jaxopt", "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "") and not list(tmp_path.iterdir())
