import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

from weft.ops.actions import (
    EpsilonGreedyNoise,
    apply_mask,
    epsilon_greedy,
    epsilon_greedy_noise,
    exploration_rate,
    nth_allowed,
    random_actions,
)


def test_nth_allowed_counts_only_allowed_choices():
    allowed = jnp.array([[True, False, True, False], [False, False, False, True]])
    drawn = [nth_allowed(allowed, jnp.full(2, number)).tolist() for number in range(4)]
    assert drawn == [[0, 3], [2, 3], [0, 3], [2, 3]]


def test_a_mask_that_allows_everything_changes_nothing(key):
    space = gym.spaces.Discrete(4)
    drawn = random_actions(space, key, (50,))
    np.testing.assert_array_equal(apply_mask(space, drawn, None), drawn)
    np.testing.assert_array_equal(apply_mask(space, drawn, jnp.ones((50, 4), jnp.int8)), drawn)


def test_every_part_of_a_nested_action_respects_its_own_mask(key):
    many, speed = gym.spaces.MultiDiscrete([2, 3]), gym.spaces.Box(-1, 1, (2,))
    space = gym.spaces.Dict(pair=gym.spaces.Tuple((many, speed)), free=gym.spaces.Discrete(4))
    drawn = random_actions(space, key, (500,))
    masks = jnp.tile(jnp.array([0, 1, 1, 0, 1], jnp.int8), (500, 1))
    found = jax.jit(lambda drawn: apply_mask(space, drawn, {"pair": (masks, None)}))(drawn)
    assert (found["pair"][0][:, 0] == 1).all()
    assert set(found["pair"][0][:, 1].tolist()) == {0, 2}
    np.testing.assert_array_equal(found["pair"][1], drawn["pair"][1])
    np.testing.assert_array_equal(found["free"], drawn["free"])


def test_the_exploration_rate_decays_to_a_different_value_in_every_environment():
    def rate(steps):
        settings = {"final": 0.1, "decay_steps": 400, "spread": 2.0, "num_envs": 4}
        return exploration_rate(jnp.int32(steps), jnp.arange(4), **settings)

    assert rate(0).tolist() == [1.0] * 4
    np.testing.assert_allclose(rate(200), 0.5)
    np.testing.assert_allclose(rate(4000), [0.1, 0.1 ** (5 / 3), 0.1 ** (7 / 3), 0.001], rtol=1e-5)


def test_epsilon_greedy_takes_the_random_action_where_it_explores():
    q = jnp.array([[0.0, 2.0, 1.0]] * 2)
    noise = EpsilonGreedyNoise(jnp.array([True, False]), jnp.array([0, 0]))
    assert epsilon_greedy(q, None, noise).tolist() == [0, 1]
    allowed = jnp.array([[False, False, True]] * 2)
    assert epsilon_greedy(q, allowed, noise).tolist() == [2, 2]


def test_epsilon_is_the_probability_of_exploring(key):
    noise = epsilon_greedy_noise(gym.spaces.Discrete(3), key, (20_000, 2), jnp.array([0.1, 0.7]))
    np.testing.assert_allclose(noise.explores.mean(axis=0), [0.1, 0.7], atol=0.02)
    np.testing.assert_allclose(jnp.bincount(noise.action.reshape(-1)) / 40_000, 1 / 3, atol=0.02)
