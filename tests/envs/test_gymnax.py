import jax
import jax.numpy as jnp
import numpy as np
import pytest

from weft.envs import available, gymnax, make
from weft.envs.gymnax import GymnaxState


def near_the_limit(env, key, time):
    """A state whose episodes have already lasted `time` steps."""
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


def test_an_index_is_observed_one_hot(key):
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


@pytest.mark.parametrize("spec", available())
def test_every_available_environment_traces(spec, key):
    env = make(spec, 2)
    state, _ = jax.eval_shape(env.reset, key)
    action = jax.ShapeDtypeStruct((2, *env.action_space.shape), jnp.float32 if env.action_space.shape else jnp.int32)
    next_state, step = jax.eval_shape(env.step, state, action, key)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), next_state) == jax.tree.map(lambda x: (x.shape, x.dtype), state)
    assert step.obs.shape == (2, *env.observation_space.shape)
