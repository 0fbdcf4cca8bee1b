import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from weft.nets.recurrent_q import RecurrentQ
from weft.ops.memory import Past, initial_memory, step_memory, unroll

SETTINGS = {"memory_size": 6, "hidden": (8,), "activation": "relu"}
MASKED = gym.spaces.Dict(action_mask=gym.spaces.MultiBinary(2), observation=gym.spaces.Box(-1, 1, (3,)))


def make(key, space=MASKED["observation"], memory="gru", **settings):
    return RecurrentQ(space, gym.spaces.Discrete(2), memory=memory, key=key, **SETTINGS | settings)


@pytest.mark.parametrize("memory", ["gru", "lstm"])
@pytest.mark.parametrize("dueling", [False, True])
def test_unrolling_equals_stepping(key, memory, dueling):
    net, obs = make(key, memory=memory, dueling=dueling), jax.random.normal(key, (5, 4, 3))
    ended = jnp.zeros((5, 4), bool)
    now, values = initial_memory(net, 4), []
    for obs_t in obs:
        now, seen = step_memory(net, now, obs_t)
        values.append(net(seen))
    start = jax.tree.map(lambda x: x[None], initial_memory(net, 4))
    np.testing.assert_allclose(net(unroll(net, obs, Past(start, ended))[0]), jnp.stack(values), rtol=1e-5, atol=1e-6)


def test_earlier_observations_change_the_values(key):
    net = make(key)
    _, fresh = step_memory(net, initial_memory(net, 4), jnp.ones((4, 3)))
    memory, _ = step_memory(net, initial_memory(net, 4), -jnp.ones((4, 3)))
    assert not np.allclose(net(fresh), net(step_memory(net, memory, jnp.ones((4, 3)))[1]))


def test_the_action_mask_bypasses_the_memory(key):
    net = make(key, space=MASKED)
    obs = {"action_mask": jnp.array([[1, 0]], jnp.int8), "observation": jnp.ones((1, 3))}
    _, seen = step_memory(net, initial_memory(net, 1), obs)
    assert net(seen).shape == (1, 2, 1)
    np.testing.assert_array_equal(net.allowed(seen), [[True, False]])
