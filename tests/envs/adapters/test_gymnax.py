import jax
import jax.numpy as jnp
import numpy as np
import pytest

from weft.envs import make
from weft.envs.adapters import gymnax
from weft.envs.adapters.gymnax import GymnaxState
from weft.errors import WeftError


def near_the_limit(env, key, time):
    """Returns a state in which every episode has already lasted `time` steps."""
    state, _ = env.reset(key)
    inner = state.inner.replace(time=jnp.full_like(state.inner.time, time))
    return GymnaxState(inner, state.episodes)


@pytest.mark.parametrize(("spec", "limit"), [("gymnax:CartPole-v1", 500), ("gymnax:Pendulum-v1", 200)])
def test_the_time_limit_truncates(spec, limit, key):
    env = make(spec, 4)
    action = jnp.zeros((4, *env.action_space.shape), jnp.float32 if env.action_space.shape else jnp.int32)
    _, before = env.step(near_the_limit(env, key, limit - 2), action, key)
    _, at = env.step(near_the_limit(env, key, limit - 1), action, key)
    assert not (before.truncated | before.terminated).any()
    assert at.truncated.all() and not at.terminated.any()
    assert (at.obs != at.final_obs).any(axis=-1).all()


def test_termination_wins_over_truncation(key):
    env = make("gymnax:CartPole-v1", 2)
    state = near_the_limit(env, key, 499)
    fallen = GymnaxState(state.inner.replace(theta=jnp.array([3.0, 0.0])), state.episodes)
    _, step = env.step(fallen, jnp.zeros(2, jnp.int32), key)
    assert step.terminated.tolist() == [True, False]
    assert step.truncated.tolist() == [False, True]


def test_discrete_observations_are_one_hot(key):
    env = make("gymnax:FrozenLake-misc", 2)
    _, obs = env.reset(key)
    assert obs.shape == (2, 16) == (2, *env.observation_space.shape)
    np.testing.assert_array_equal(obs.sum(axis=-1), 1)


def test_an_environment_first_used_inside_a_trace_leaks_nothing(key):
    gymnax._load.cache_clear()
    env = gymnax.GymnaxEnv("PointRobot-misc", 2)
    first = jax.jit(lambda key: env.reset(key)[1])(key)
    second = jax.jit(lambda key: env.reset(key)[1] + 0)(key)
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("env_id", gymnax.available())
def test_every_available_environment_traces(env_id, key):
    env = gymnax.make(env_id, 2)
    state, _ = jax.eval_shape(env.reset, key)
    action = jax.ShapeDtypeStruct((2, *env.action_space.shape), jnp.float32 if env.action_space.shape else jnp.int32)
    next_state, step = jax.eval_shape(env.step, state, action, key)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), next_state) == jax.tree.map(lambda x: (x.shape, x.dtype), state)
    assert step.obs.shape == (2, *env.observation_space.shape)


@pytest.mark.optimised  # The two programs that are compared round alike only with all optimisations.
@pytest.mark.parametrize("spec", ["gymnax:CartPole-v1", "gymnax:Breakout-MinAtar"])
def test_a_last_step_truncates_and_restarts_the_episode(spec, key):
    env = make(spec, 3)
    state, _ = env.reset(key)
    action, last = jnp.zeros(3, jnp.int32), jnp.array([True, False, True])
    (plain_state, plain), (cut_state, cut) = env.step(state, action, key), env.step(state, action, key, last)
    assert cut.truncated.tolist() == [True, False, True] and not cut.terminated.any()
    assert jax.tree.all(jax.tree.map(lambda a, b: np.array_equal(a[1], b[1]), (plain_state, plain), (cut_state, cut)))
    np.testing.assert_array_equal(cut.final_obs, plain.obs)
    assert (cut.obs != cut.final_obs).reshape(3, -1).any(axis=-1).tolist() == [True, False, True]
    np.testing.assert_array_equal(cut_state.inner.time, [0, 1, 0])
    assert cut_state.episodes.finished.tolist() == [1, 0, 1]


def test_initial_states_differ_between_rows_and_between_kinds_of_end(key):
    env = make("gymnax:CartPole-v1", 3)
    state, action = near_the_limit(env, key, 499), jnp.zeros(3, jnp.int32)
    starts = [env.step(state, action, key)[1].obs]
    starts += [env.step(env.reset(key)[0], action, key, jnp.ones(3, bool))[1].obs]
    assert len(np.unique(np.concatenate(starts), axis=0)) == 6


def test_termination_wins_over_a_last_step(key):
    env = make("gymnax:CartPole-v1", 2)
    state, _ = env.reset(key)
    fallen = GymnaxState(state.inner.replace(theta=jnp.array([3.0, 0.0])), state.episodes)
    _, step = env.step(fallen, jnp.zeros(2, jnp.int32), key, jnp.ones(2, bool))
    assert step.terminated.tolist() == [True, False]
    assert step.truncated.tolist() == [False, True]


@pytest.mark.optimised  # The two programs that are compared round alike only with all optimisations.
def test_a_last_mask_without_true_entries_equals_none(key):
    env = make("gymnax:CartPole-v1", 3)
    state, _ = env.reset(key)
    given = [env.step(state, jnp.zeros(3, jnp.int32), key, last) for last in (None, jnp.zeros(3, bool))]
    assert jax.tree.all(jax.tree.map(np.array_equal, *given))


def test_options_are_rejected():
    with pytest.raises(WeftError, match="gymnax:CartPole-v1 has no options, but was given vector"):
        gymnax.make("CartPole-v1", 2, vector="inprocess")
