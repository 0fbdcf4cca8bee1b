import jax
import jax.numpy as jnp
import numpy as np
import pytest

from weft.envs import make
from weft.ops.rollout import Place, rollout

T, B = 60, 3


@pytest.fixture
def start(key):
    env = make("gymnax:CartPole-v1", B)
    state, obs = env.reset(key)
    noise = jax.random.uniform(key, (T, B))
    return env, Place(state, obs), {"noise": noise, "key": key, "length": T}


def act(obs, memory, noise):
    return (noise < 0.5).astype(jnp.int32), {"seen": obs[:, 0]}, memory


def test_a_rollout_is_the_loop_by_hand(start):
    env, place, given = start
    end, trajectory = rollout(env, act, place, **given)
    state, obs = place.env, place.obs
    for t, key in enumerate(jax.random.split(given["key"], T)):
        action, extra, _ = act(obs, (), given["noise"][t])
        state, step = env.step(state, action, key)
        np.testing.assert_array_equal(trajectory.obs[t], obs)
        np.testing.assert_array_equal(trajectory.extra["seen"][t], extra["seen"])
        np.testing.assert_allclose(trajectory.final_obs[t], step.final_obs, rtol=1e-5, atol=1e-6)
        # Gone on from the rollout's own observation: what is compared is each step, not rounding over many.
        obs = trajectory.obs[t + 1] if t + 1 < T else end.obs
        np.testing.assert_allclose(obs, step.obs, rtol=1e-5, atol=1e-6)


def test_where_a_step_led_is_where_the_next_one_starts_unless_an_episode_ended(start):
    env, place, given = start
    end, trajectory = rollout(env, act, place, **given)
    following = np.concatenate([trajectory.obs[1:], end.obs[None]])
    ended = np.asarray(trajectory.terminated | trajectory.truncated)
    assert ended.any()
    np.testing.assert_array_equal(following[~ended], trajectory.final_obs[~ended])
    assert (following[ended] != trajectory.final_obs[ended]).any(axis=-1).all()


def test_unrolling_changes_nothing_but_the_program(start):
    env, place, given = start
    plain, unrolled = (rollout(env, act, place, **given, unroll=unroll) for unroll in (1, 4))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), plain, unrolled)
