import jax
import jax.numpy as jnp
import numpy as np
import pytest

from weft.envs import make
from weft.ops.rollout import RolloutState, rollout

T, B = 60, 3


@pytest.fixture
def start(key):
    env = make("gymnax:CartPole-v1", B)
    state, obs = env.reset(key)
    noise = jax.random.uniform(key, (T, B))
    return env, RolloutState(state, obs), {"noise": noise, "key": key, "length": T}


def act(obs, memory, noise):
    return (noise < 0.5).astype(jnp.int32), {"first": obs[:, 0]}, memory


def test_a_rollout_equals_an_explicit_loop(start):
    env, first, arguments = start
    end, trajectory = rollout(env, act, first, **arguments)
    state, obs = first.env, first.obs
    for t, key in enumerate(jax.random.split(arguments["key"], T)):
        action, extra, _ = act(obs, (), arguments["noise"][t])
        state, step = env.step(state, action, key)
        np.testing.assert_array_equal(trajectory.obs[t], obs)
        np.testing.assert_array_equal(trajectory.extra["first"][t], extra["first"])
        np.testing.assert_allclose(trajectory.final_obs[t], step.final_obs, rtol=1e-5, atol=1e-6)
        # Continue from the rollout's observation, so that rounding does not accumulate.
        obs = trajectory.obs[t + 1] if t + 1 < T else end.obs
        np.testing.assert_allclose(obs, step.obs, rtol=1e-5, atol=1e-6)


def test_final_obs_is_the_next_observation_unless_an_episode_ended(start):
    env, first, arguments = start
    end, trajectory = rollout(env, act, first, **arguments)
    following = np.concatenate([trajectory.obs[1:], end.obs[None]])
    ended = np.asarray(trajectory.terminated | trajectory.truncated)
    assert ended.any()
    np.testing.assert_array_equal(following[~ended], trajectory.final_obs[~ended])
    assert (following[ended] != trajectory.final_obs[ended]).any(axis=-1).all()


def test_unrolling_the_loop_does_not_change_the_result(start):
    env, first, arguments = start
    plain, unrolled = (rollout(env, act, first, **arguments, unroll=unroll) for unroll in (1, 4))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), plain, unrolled)
