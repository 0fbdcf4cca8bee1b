"""What every environment adapter must hold to; a new adapter is one more entry in `SPECS`."""

import functools

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from weft.envs import make

SPECS = [
    "gymnax:CartPole-v1",
    "gymnax:Pendulum-v1",
    "gymnax:PointRobot-misc",
    "gymnax:Catch-bsuite",
    "gymnax:DeepSea-bsuite",
    "gymnax:UmbrellaChain-bsuite",
    "gymnax:FourRooms-misc",
    "gymnax:FrozenLake-misc",
    "gymnax:Reacher-misc",
    "gymnax:Breakout-MinAtar",
]

CONTINUOUS = [spec for spec in SPECS if isinstance(make(spec, 1).action_space, gym.spaces.Box)]
NUM_ENVS = 3
LENGTH = 510


@pytest.fixture(params=SPECS)
def spec(request):
    return request.param


@pytest.fixture
def env(spec):
    return make(spec, NUM_ENVS)


def random_actions(env, key, shape):
    space = env.action_space
    if isinstance(space, gym.spaces.Discrete):
        return jax.random.randint(key, shape, 0, int(space.n))
    return jax.random.uniform(key, (*shape, *space.shape), jnp.float32, space.low, space.high)


@functools.cache
def random_walk(env):
    """The first observations of a random walk, the states before and after it, and every time step of it."""
    key_reset, key_act, key_env = jax.random.split(jax.random.key(1), 3)
    before, obs = env.reset(key_reset)
    xs = random_actions(env, key_act, (LENGTH, NUM_ENVS)), jax.random.split(key_env, LENGTH)
    after, steps = jax.jit(lambda state: jax.lax.scan(lambda s, x: env.step(s, *x), state, xs))(before)
    return obs, before, after, jax.tree.map(np.asarray, steps)


@pytest.fixture
def walk(env):
    return random_walk(env)


def episodes_by_hand(steps):
    """The returns and lengths of finished episodes, one environment after another."""
    found = []
    for b in range(NUM_ENVS):
        total, length = 0.0, 0
        for t in range(LENGTH):
            total, length = total + steps.reward[t, b] * steps.valid[t, b], length + steps.valid[t, b]
            if steps.terminated[t, b] or steps.truncated[t, b]:
                found.append((total, length))
                total, length = 0.0, 0
    return np.array(found).reshape(-1, 2)


def test_an_environment_is_a_value(env, spec):
    twin = make(spec, NUM_ENVS)
    assert twin == env and hash(twin) == hash(env)
    assert make(spec, NUM_ENVS + 1) != env


def test_every_leaf_leads_with_the_environments(env, walk):
    obs, before, after, steps = walk
    for leaf in jax.tree.leaves((obs, before, after)):
        assert leaf.shape[0] == NUM_ENVS
    for leaf in jax.tree.leaves(steps):
        assert leaf.shape[:2] == (LENGTH, NUM_ENVS)


def test_types_do_not_change_over_a_step(env, key):
    state, obs = env.reset(key)
    next_state, step = env.step(state, random_actions(env, key, (NUM_ENVS,)), key)
    _, taken = env.episodes(state)
    assert jax.tree.map(jax.typeof, next_state) == jax.tree.map(jax.typeof, state)
    assert jax.tree.map(jax.typeof, env.episodes(next_state)[0]) == jax.tree.map(jax.typeof, state)
    assert jax.typeof(step.obs) == jax.typeof(obs) == jax.typeof(step.final_obs)
    assert not any(jax.typeof(leaf).weak_type for leaf in jax.tree.leaves((state, step, taken)))
    assert (step.reward.dtype, step.terminated.dtype, step.truncated.dtype) == (jnp.float32, bool, bool)


def test_observations_lie_in_their_space(env, walk):
    obs, _, _, steps = walk
    low, high = env.observation_space.low, env.observation_space.high
    for seen in (obs, steps.obs, steps.final_obs):
        assert seen.dtype == env.observation_space.dtype == np.float32
        # Some environments step past a bound of theirs by a rounding error.
        assert (seen >= low - 1e-5).all() and (seen <= high + 1e-5).all()


def test_an_episode_ends_in_one_way(walk):
    steps = walk[-1]
    assert not (steps.terminated & steps.truncated).any()
    assert (steps.terminated | steps.truncated).any()


def test_the_final_observation_is_the_next_one_but_at_ends(walk):
    steps = walk[-1]
    differs = (steps.obs != steps.final_obs).reshape(LENGTH, NUM_ENVS, -1).any(axis=-1)
    assert not (differs & ~(steps.terminated | steps.truncated)).any()


def test_statistics_equal_those_counted_by_hand(env, walk):
    _, _, after, steps = walk
    expected = episodes_by_hand(steps)
    _, metrics = env.episodes(after)
    for name, column in (("episode_return", 0), ("episode_length", 1)):
        assert metrics[name].count == len(expected)
        np.testing.assert_allclose(metrics[name].total, expected[:, column].sum(), rtol=1e-5, atol=1e-5)


def test_statistics_are_taken_out_once(env, walk):
    _, metrics = env.episodes(env.episodes(walk[2])[0])
    assert all(mean.total == 0 and mean.count == 0 for mean in metrics.values())


def test_the_same_keys_give_the_same_walk(env, key):
    action = random_actions(env, key, (NUM_ENVS,))

    def first_step():
        return env.step(env.reset(key)[0], action, key)[1]

    assert jax.tree.all(jax.tree.map(np.array_equal, first_step(), first_step()))


@pytest.mark.parametrize("spec", CONTINUOUS)
def test_actions_beyond_the_bounds_are_clipped(spec, key):
    env = make(spec, NUM_ENVS)
    state, _ = env.reset(key)
    high = jnp.broadcast_to(jnp.asarray(env.action_space.high), (NUM_ENVS, *env.action_space.shape))
    at, beyond = env.step(state, high, key)[1], env.step(state, high + 100, key)[1]
    assert jax.tree.all(jax.tree.map(np.array_equal, at, beyond))
