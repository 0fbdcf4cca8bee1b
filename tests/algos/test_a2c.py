import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.algos.experience import collect
from weft.algos.a2c import A2C
from weft.algos.policy_gradient import Targets
from weft.envs import make


def test_the_gradient_of_all_environments_is_the_mean_over_their_shares(key):
    """What lets replicas average gradients: each holds its share of the environments."""
    algo, env = A2C(num_envs=4, horizon=8), make("gymnax:CartPole-v1", 4)
    state = algo.init(env, key)
    seen = collect(algo, env, state)
    returns = jnp.cumsum(seen.reward, axis=0)
    targets = Targets(returns, returns - state.net.value(seen.obs), jnp.ones_like(returns, bool))

    def gradient(columns):
        return algo.gradient(state.net, *jax.tree.map(lambda x: x[:, columns], (seen, targets)))[0]

    whole, halves = gradient(slice(0, 4)), [gradient(slice(0, 2)), gradient(slice(2, 4))]
    mean = jax.tree.map(lambda a, b: (a + b) / 2, *halves)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5), whole, mean)
    with pytest.raises(AssertionError):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5), whole, halves[0])
