import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from weft.nets.policy import Policy

SETTINGS = {"hidden": (8,), "activation": "relu"}


@pytest.mark.parametrize("action_space", [gym.spaces.Discrete(3), gym.spaces.Box(-1, 1, (2,))])
def test_the_policy_has_the_shape_of_the_actions(key, action_space):
    net = Policy(gym.spaces.Box(-1, 1, (4,)), action_space, key=key, **SETTINGS)
    policy = net(jax.random.normal(key, (5, 4)))
    assert policy.log_prob(policy.mode()).shape == (5,)
    assert policy.mode().shape == (5, *action_space.shape)


def test_a_mask_rules_out_actions(key):
    space = gym.spaces.Dict(action_mask=gym.spaces.MultiBinary(2), observation=gym.spaces.Box(-1, 1, (3,)))
    net = Policy(space, gym.spaces.Discrete(2), key=key, **SETTINGS)
    obs = {"action_mask": jnp.array([[0, 1]], jnp.int8), "observation": jnp.ones((1, 3))}
    np.testing.assert_allclose(net(obs).log_prob(jnp.array([1])), [0.0], atol=1e-6)
