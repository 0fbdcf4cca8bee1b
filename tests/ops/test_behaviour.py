import gymnasium as gym
import jax.numpy as jnp
import numpy as np
import pytest

from weft.envs import make
from weft.ops.behaviour import ActingNoise, behaviour_rollout, play_with, random_rollout_actions
from weft.ops.rollout import RolloutState

T, B = 5, 3


def act(obs, memory, noise):
    return noise, {"memory": memory}, memory + 1


@pytest.mark.parametrize("random", [True, False])
def test_random_actions_replace_those_of_the_policy(random, key):
    env = make("gymnax:CartPole-v1", B)
    policy, other = jnp.zeros((T, B), jnp.int32), jnp.ones((T, B), jnp.int32)
    start = RolloutState(*env.reset(key), jnp.zeros(B))
    noise = ActingNoise(policy, other if random else None)
    end, trajectory = behaviour_rollout(env, act, start, noise=noise, key=key, length=T)
    np.testing.assert_array_equal(trajectory.action, other if random else policy)
    assert trajectory.past is None, "memories are in extra"
    np.testing.assert_array_equal(trajectory.extra["memory"], np.arange(T)[:, None] * np.ones(B))
    assert end.memory.tolist() == [T] * B


def test_random_actions_of_a_rollout_are_of_the_action_space(key):
    actions = random_rollout_actions(make("gymnax:CartPole-v1", B), key, 200)
    assert actions.shape == (200, B)
    assert set(np.unique(actions)) == {0, 1}


def test_playing_greedily_sets_the_noise_to_0(key):
    space = gym.spaces.Box(-1, 1, (2,))
    greedy, sampled = (play_with(act, space, greedy=greedy) for greedy in (True, False))
    inputs = jnp.zeros(B), jnp.zeros((B, 4)), jnp.zeros(B, bool), key
    assert not greedy(*inputs)[1].any()
    assert sampled(*inputs)[1].shape == (B, 2) and (sampled(*inputs)[1] != 0).all()
