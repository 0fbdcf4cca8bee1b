import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.algos.experience import collect
from weft.algos.a2c import A2C
from weft.envs import make
from weft.ops.losses import Targets


def test_the_gradient_is_the_mean_of_the_gradients_of_equal_parts_of_the_environments(key):
    """So replicas that each hold a part of the environments may average their gradients."""
    algo, env = A2C(num_envs=4, horizon=8), make("gymnax:CartPole-v1", 4)
    state = algo.init(env, key)
    trajectory = collect(algo, env, state)
    returns = jnp.cumsum(trajectory.reward, axis=0)
    targets = Targets(returns, returns - state.net.value(trajectory.obs), jnp.ones_like(returns, bool))

    def gradient(columns):
        return algo.gradient(state.net, *jax.tree.map(lambda x: x[:, columns], (trajectory, targets)))[0]

    whole, halves = gradient(slice(0, 4)), [gradient(slice(0, 2)), gradient(slice(2, 4))]
    mean = jax.tree.map(lambda a, b: (a + b) / 2, *halves)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5), whole, mean)
    with pytest.raises(AssertionError):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5), whole, halves[0])
