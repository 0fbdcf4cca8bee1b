from collections import deque

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.envs.scripted_env import LENGTH, Scripted, play
from weft import WeftError
from weft.envs import make
from weft.envs.wrappers import (
    WRAPPERS,
    clip_reward,
    frame_stack,
    normalise_obs,
    normalise_reward,
    reset_with_statistics,
    time_limit,
    wrap,
)
from weft.envs.wrappers.frames import FrameStack


def stacked_by_hand(script, row, name, frames):
    """Returns the expected stacks of one row, and the expected final observations."""
    obs, final = script["obs"][name][row], script["final"][name][row]
    seen, shown, finals = deque([obs[0]] * frames, maxlen=frames), [], []
    for t in range(LENGTH):
        ended, valid = script["terminated"][row, t] | script["truncated"][row, t], script["valid"][row, t]
        last = [*list(seen)[1:], final[t]]
        seen.append(obs[t + 1])
        if ended or not valid:
            seen = deque([obs[t + 1]] * frames, maxlen=frames)
        shown.append(np.concatenate(list(seen), axis=-1))
        finals.append(np.concatenate(last if valid else list(seen), axis=-1))
    return np.stack(shown), np.stack(finals)


@pytest.mark.parametrize("frames", [1, 2, 4])
@pytest.mark.parametrize("name", ["place", "image"])
def test_a_stack_holds_frames_of_one_episode(name, frames):
    inner = Scripted(4)
    env = frame_stack(inner, frames)
    _, first, seen = play(env)
    np.testing.assert_array_equal(first[name], np.concatenate([inner.script["obs"][name][:, 0]] * frames, axis=-1))
    for row in range(4):
        shown, finals = stacked_by_hand(inner.script, row, name, frames)
        np.testing.assert_array_equal(seen.obs[name][row], shown)
        np.testing.assert_array_equal(seen.final_obs[name][row], finals)
    assert seen.obs[name].dtype == inner.script["obs"][name].dtype


def test_parts_that_are_not_boxes_are_not_stacked():
    env = frame_stack(Scripted(4), 3)
    _, _, seen = play(env, 5)
    np.testing.assert_array_equal(seen.obs["room"], Scripted(4).script["obs"]["room"][:, 1:6])
    assert env.observation_space["room"] == gym.spaces.Discrete(5)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((), (3,)), ((5,), (15,)), ((6, 7), (6, 7, 3)), ((8, 8, 2), (8, 8, 6)), ((2, 8, 8), (6, 8, 8))],
    ids=str,
)
def test_frames_are_joined_along_channels(shape, expected):
    wrapper, obs = FrameStack(3, (True,)), jnp.arange(2 * np.prod(shape, dtype=int)).reshape(2, *shape)
    state, first = wrapper.init(obs, None)
    assert (
        first.shape == (2, *expected) == (2, *wrapper.observation_space(gym.spaces.Box(0, 255, shape, np.uint8)).shape)
    )
    bounds = wrapper.observation_space(gym.spaces.Box(np.zeros(shape, np.float32), np.ones(shape, np.float32)))
    assert (bounds.low == 0).all() and (bounds.high == 1).all()
    axis = 1 if shape == (2, 8, 8) else -1
    (pushed,) = wrapper._push(state, wrapper._frames(-obs))
    newest = jnp.split(pushed, 3, axis=axis)[2]
    np.testing.assert_array_equal(newest.reshape(2, *shape), -obs)


def lengths(env, steps):
    state, _, _ = play(env, steps)
    mean = env.episodes(state)[1]["episode_length"]
    return float(mean.total), float(mean.count)


def cart_poles():
    return make("gymnax:CartPole-v1", 4)


@pytest.mark.parametrize("env", [time_limit(cart_poles(), 3), time_limit(time_limit(cart_poles(), 3), 5)])
def test_episodes_are_truncated_at_the_limit(env):
    assert lengths(env, 7) == (4 * 2 * 3, 4 * 2)


def test_the_outer_limit_resets_the_count_of_the_inner_limit():
    assert lengths(time_limit(time_limit(cart_poles(), 5), 3), 7) == (4 * 2 * 3, 4 * 2)


def test_a_limit_and_the_caller_can_both_truncate(key):
    env = time_limit(cart_poles(), 2)
    state, _ = env.reset(key)
    action, cut = jnp.zeros(4, jnp.int32), []
    for last in ([True, False, False, False], [False, False, True, False]):
        state, timestep = env.step(state, action, key, jnp.array(last))
        cut.append(timestep.truncated.tolist())
    assert cut == [[True, False, False, False], [False, True, True, True]]
    assert state.wrapper.tolist() == [1, 0, 0, 0]


def test_the_limit_does_not_count_rows_inserted_by_an_autoreset():
    inner = Scripted(4)
    _, _, seen = play(time_limit(inner, 4))
    by_itself = inner.script["terminated"] | inner.script["truncated"]
    for row in range(4):
        length = 0
        for t in range(LENGTH):
            length += inner.script["valid"][row, t]
            ended = seen.terminated[row, t] | seen.truncated[row, t]
            assert ended == by_itself[row, t] | (length == 4 and inner.script["valid"][row, t])
            length = 0 if ended else length


def test_rewards_are_clipped():
    _, _, seen = play(clip_reward(Scripted(4)))
    np.testing.assert_array_equal(seen.reward, np.clip(Scripted(4).script["reward"], -1, 1))


def test_specs_apply_wrappers_innermost_first():
    specs = ["time_limit=9", "frame_stack=2", "normalise_obs", "normalise_reward=0.9", "clip_reward"]
    inner = normalise_obs(frame_stack(time_limit(Scripted(2), 9), 2))
    expected = clip_reward(normalise_reward(inner, gamma=0.9))
    assert wrap(Scripted(2), specs) == expected and hash(wrap(Scripted(2), specs)) == hash(expected)
    assert wrap(Scripted(2), specs[::-1]) != expected
    assert set(WRAPPERS) == {spec.partition("=")[0] for spec in specs}
    assert wrap(Scripted(2), []) == Scripted(2)
    assert wrap(Scripted(2), ["normalise_reward"]) == wrap(Scripted(2), ["normalise_reward=0.99"])


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("frame_stac=4", "unknown wrapper 'frame_stac': did you mean 'frame_stack'"),
        ("", "unknown wrapper ''"),
        ("frame_stack", "wrapper frame_stack: write frame_stack=FRAMES, with a whole number"),
        ("frame_stack=", "wrapper frame_stack=: write frame_stack=FRAMES"),
        ("time_limit=2.5", "wrapper time_limit=2.5: write time_limit=STEPS, with a whole number"),
        ("normalise_reward=x", "wrapper normalise_reward=x: write normalise_reward=GAMMA, with a number"),
        ("normalise_reward=nan", "gamma is nan"),
        ("clip_reward=1", "wrapper clip_reward=1: clip_reward takes no value"),
        ("time_limit=0", "time_limit: 0 steps"),
        ("frame_stack=-1", "frame_stack: -1 frames"),
    ],
)
def test_an_invalid_spec_is_rejected(spec, message):
    with pytest.raises(WeftError, match=message):
        wrap(Scripted(2), [spec])


def test_without_statistics_a_reset_with_statistics_is_a_reset(key):
    env = frame_stack(time_limit(cart_poles(), 5), 2)
    trained, _, _ = play(env, 3)
    fresh = [start(key) for start in (env.reset, lambda key: reset_with_statistics(env, key, trained))]
    assert jax.tree.all(jax.tree.map(np.array_equal, *fresh))
