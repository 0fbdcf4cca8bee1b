import jax
import jax.numpy as jnp
import numpy as np
import pytest

from weft.ops.batches import swap_time
from weft.ops.memory import Past, forget, initial_memory, step_memory, unroll

T, B, SIZE = 12, 3, 4


class Decay:
    """A network that remembers a decaying sum of observations and a count, arrays of different ranks."""

    def initial(self, n):
        return jnp.zeros(n), jnp.zeros((n, SIZE))

    def encode(self, obs):
        return {"x": 2.0 * obs}

    def recall(self, memory, x):
        count, total = memory
        memory = count + 1.0, 0.5 * total + x["x"]
        return memory, memory[1] + memory[0][..., None]


class Plain:
    def policy(self, obs): ...
    def value(self, obs): ...


@pytest.fixture
def trajectory(key):
    key_obs, key_memory, key_ended = jax.random.split(key, 3)
    obs = jax.random.normal(key_obs, (T, B, SIZE))
    memory = jnp.arange(3.0)[None], jax.random.normal(key_memory, (1, B, SIZE))
    return obs, Past(memory, jax.random.bernoulli(key_ended, 0.2, (T, B)))


def test_unrolling_equals_single_steps(trajectory):
    obs, past = trajectory
    inputs, after = unroll(Decay(), obs, past)
    memory = jax.tree.map(lambda x: x[0], past.memory)
    for t in range(T):
        memory, now = step_memory(Decay(), memory, obs[t])
        np.testing.assert_allclose(inputs[t], now, rtol=1e-6)
        jax.tree.map(lambda a, b, t=t: np.testing.assert_allclose(a[t], b, rtol=1e-6), after, memory)
        memory = forget(memory, past.ended[t])


def test_time_may_be_the_second_axis(trajectory):
    obs, past = trajectory
    first, second = unroll(Decay(), obs, past), unroll(Decay(), swap_time(obs), swap_time(past), time=1)
    jax.tree.map(np.testing.assert_array_equal, first, swap_time(second))


def test_the_memory_is_reset_at_the_end_of_an_episode(trajectory):
    obs, past = trajectory
    past = Past(past.memory, past.ended.at[5].set(True).at[6:].set(False))
    other = Past(jax.tree.map(lambda x: x + 1.0, past.memory), past.ended)
    inputs, changed = unroll(Decay(), obs, past)[0], unroll(Decay(), obs.at[:6].add(1.0), other)[0]
    np.testing.assert_array_equal(inputs[6:], changed[6:])
    assert (inputs[:6] != changed[:6]).all()
    not_ended = Past(past.memory, past.ended.at[5].set(False))
    assert (unroll(Decay(), obs, not_ended)[0][6:] != inputs[6:]).any()


def test_forget_resets_only_ended_episodes():
    count, total = forget((jnp.ones(2), jnp.ones((2, SIZE))), jnp.array([True, False]))
    assert count.tolist() == [0, 1] and total.sum(axis=-1).tolist() == [0, SIZE]


def test_a_network_without_memory_takes_observations():
    obs = {"a": jnp.ones((T, B))}
    assert initial_memory(Plain(), 5) == () == forget((), jnp.ones(B, bool))
    assert step_memory(Plain(), (), obs) == ((), obs) and step_memory(Plain(), (), obs)[1] is obs
    assert unroll(Plain(), obs, None)[0] is obs
