import equinox as eqx
import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from weft.nets.build import build
from weft.nets.recurrent import GRU, LSTM, Recurrent
from weft.ops.memory import Past, step_memory, unroll

SPACES = gym.spaces.Box(-1, 1, (3,)), gym.spaces.Discrete(2)
SETTINGS = {"hidden": (8,), "activation": "tanh", "shared": False, "torso": "auto", "squash": False}


def make(memory, key, observation_space=SPACES[0], **settings):
    settings = SETTINGS | settings
    return build(observation_space, SPACES[1], memory=memory, memory_size=6, key=key, **settings)


def test_a_gru_equals_equinox(key):
    ours, theirs = GRU(3, 6, key=key), eqx.nn.GRUCell(3, 6, key=key)
    memory, x = jax.random.normal(key, (6,)), jax.random.normal(key, (3,))
    theirs = eqx.tree_at(
        lambda cell: (cell.weight_ih, cell.weight_hh, cell.bias, cell.bias_n),
        theirs,
        (ours.inputs.weight.T, ours.hidden.weight.T, ours.inputs.bias, jnp.zeros(6)),
    )
    after, output = ours(memory, ours.inputs(x))
    np.testing.assert_allclose(after, theirs(x, memory), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(after, output)


def test_an_lstm_equals_equinox(key):
    ours, theirs = LSTM(3, 6, key=key), eqx.nn.LSTMCell(3, 6, key=key)
    memory, x = tuple(jax.random.normal(key, (2, 6))), jax.random.normal(key, (3,))
    remember = jnp.zeros(24).at[6:12].set(1.0)
    theirs = eqx.tree_at(
        lambda cell: (cell.weight_ih, cell.weight_hh, cell.bias),
        theirs,
        (ours.inputs.weight.T, ours.hidden.weight.T, remember),
    )
    after, output = ours(memory, ours.inputs(x))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), after, theirs(x, memory))
    np.testing.assert_array_equal(after[0], output)


@pytest.mark.parametrize(("memory", "shared"), [("gru", False), ("lstm", True)])
def test_every_parameter_is_an_array_and_has_a_gradient(memory, shared, key):
    net = jax.tree.map(lambda x: x + 0.1, make(memory, key, shared=shared))
    past = Past(jax.tree.map(lambda x: x[None], net.initial(2)), jnp.zeros((5, 2), bool))
    obs = jax.random.normal(key, (5, 2, 3))

    @jax.jit
    def gradient(net):
        def loss(net):
            seen, _ = unroll(net, obs, past)
            return jnp.sum(net.policy(seen).log_prob(jnp.ones((5, 2), jnp.int32))) + jnp.sum(net.value(seen))

        return jax.grad(loss)(net)

    assert all(isinstance(leaf, jax.Array) and leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(net))
    assert all((jnp.abs(leaf) > 0).any() for leaf in jax.tree.leaves(gradient(net)))


@pytest.mark.parametrize("memory", ["gru", "lstm"])
def test_the_first_axis_of_a_memory_is_the_environment(memory, key):
    """A layout divides memories among replicas along that axis."""
    assert all(leaf.shape == (7, 6) for leaf in jax.tree.leaves(make(memory, key).initial(7)))


def test_earlier_observations_change_the_output(key):
    net = make("gru", key)
    obs = jnp.ones((1, 3))
    fresh = step_memory(net, net.initial(1), obs)
    later = step_memory(net, fresh[0], obs)
    assert jnp.abs(net.value(fresh[1]) - net.value(later[1])).max() > 1e-3


@pytest.mark.parametrize("shared", [False, True])
def test_policy_and_value_share_a_memory_only_if_shared(shared, key):
    net = make("gru", key, shared=shared)
    grads = jax.grad(lambda net: jnp.sum(net.value(step_memory(net, net.initial(2), jnp.ones((2, 3)))[1])))(net)
    assert len(net.memories) == (1 if shared else 2)
    assert all((jnp.abs(leaf) > 0).any() for leaf in jax.tree.leaves(grads.memories[-1].cell.inputs.bias))
    assert shared or all((leaf == 0).all() for leaf in jax.tree.leaves(grads.memories[0]))


def test_the_action_mask_bypasses_the_memory(key):
    space = gym.spaces.Dict(observation=SPACES[0], action_mask=gym.spaces.MultiBinary(2))
    net = make("gru", key, space)
    obs = {"observation": jnp.ones((4, 3)), "action_mask": jnp.array([[1, 0]] * 4, jnp.int8)}
    memory, seen = step_memory(net, net.initial(4), obs)
    assert net.policy(seen).mode().tolist() == [0] * 4 and net.value(seen).shape == (4,)
    assert (jnp.exp(net.policy(seen).log_prob(jnp.ones(4, jnp.int32))) == 0).all()
    unmasked = obs | {"action_mask": jnp.ones((4, 2), jnp.int8)}
    jax.tree.map(np.testing.assert_array_equal, step_memory(net, net.initial(4), unmasked)[0], memory)


def test_without_memory_the_network_is_not_recurrent(key):
    assert not isinstance(make("none", key), Recurrent)
