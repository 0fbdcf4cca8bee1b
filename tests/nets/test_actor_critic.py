import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from weft.errors import WeftError
from weft.nets.actor_critic import ActorCritic
from weft.nets.mlp import MLP, Linear
from weft.ops.distributions import Categorical, DiagonalGaussian, SquashedGaussian

IMAGE = gym.spaces.Box(0, 1, (3, 2))
ACTIONS = {"discrete": gym.spaces.Discrete(3), "continuous": gym.spaces.Box(-1, 1, (2,))}


def build(action_space, key, shared=False, hidden=(8, 8)):
    return ActorCritic(IMAGE, action_space, hidden=hidden, activation="tanh", shared=shared, key=key)


@pytest.fixture(params=[(kind, shared) for kind in ACTIONS for shared in (False, True)], ids=str)
def net(request, key):
    kind, shared = request.param
    return build(ACTIONS[kind], key, shared)


def objective(net, obs):
    return jnp.sum(net.policy(obs).entropy()) + jnp.sum(jnp.square(net.value(obs) - 1.0))


def test_a_net_works_with_plain_jax_transformations(net):
    optimiser = optax.sgd(1e-3)
    obs = jnp.ones((4, 3, 2))

    def descend(carry, _):
        net, opt = carry
        loss, grads = jax.value_and_grad(objective)(net, obs)
        updates, opt = optimiser.update(grads, opt)
        return (optax.apply_updates(net, updates), opt), loss

    _, losses = jax.jit(lambda net: jax.lax.scan(descend, (net, optimiser.init(net)), length=5))(net)
    assert all(isinstance(leaf, jax.Array) and leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(net))
    assert (jnp.diff(losses) < 0).all()


def test_every_parameter_has_a_gradient(net, key):
    obs = jax.random.normal(key, (4, 3, 2))
    net = jax.tree.map(lambda x: x + 0.1, net)
    noise = jnp.full((4, 3) if isinstance(net.policy(obs), Categorical) else (4, 2), 2.0)

    def loss(net):
        policy = net.policy(obs)
        action = jax.lax.stop_gradient(policy.sample(noise))
        return jnp.sum(policy.log_prob(action)) + jnp.sum(net.value(obs))

    assert all((jnp.abs(leaf) > 0).any() for leaf in jax.tree.leaves(jax.grad(loss)(net)))


def test_leading_axes_do_not_change_the_results(net, key):
    obs = jax.random.normal(key, (5, 4, 3, 2))
    whole, rows = net.value(obs), net.value(obs.reshape(20, 3, 2))
    assert whole.shape == (5, 4) and net.value(obs[0, 0]).shape == ()
    np.testing.assert_allclose(whole.reshape(20), rows, rtol=1e-5, atol=1e-6)
    for leaf in jax.tree.leaves(net.policy(obs)):
        assert leaf.shape[:2] == (5, 4)


def test_the_head_depends_on_the_action_space(key):
    assert isinstance(build(ACTIONS["discrete"], key).policy(jnp.ones((3, 2))), Categorical)
    assert isinstance(build(ACTIONS["continuous"], key).policy(jnp.ones((3, 2))), DiagonalGaussian)


def test_the_value_has_a_gradient_to_the_actor_torso_only_if_shared(key):
    obs = jnp.ones((4, 3, 2))

    def torso_gradient(shared):
        grads = jax.grad(lambda net: jnp.sum(net.value(obs)))(build(ACTIONS["discrete"], key, shared))
        return max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(grads.actor_torso))

    assert torso_gradient(shared=True) > 0 == torso_gradient(shared=False)


def test_the_initial_policy_is_nearly_uniform(key):
    policy = build(ACTIONS["discrete"], key).policy(jax.random.normal(key, (50, 3, 2)))
    np.testing.assert_allclose(policy.entropy(), jnp.log(3.0), atol=1e-3)


def test_linear_layers_have_orthogonal_initial_weights(key):
    weight = Linear(16, 8, scale=2.0, key=key).weight
    np.testing.assert_allclose(weight.T @ weight, 4 * jnp.eye(8), atol=1e-5)


def test_an_mlp_without_hidden_layers_is_the_identity(key):
    x = jnp.ones((2, 6))
    assert MLP(6, (), activation="relu", key=key)(x) is x
    assert build(ACTIONS["discrete"], key, hidden=()).value(jnp.ones((2, 3, 2))).shape == (2,)


def test_an_action_mask_changes_the_policy_but_not_the_value(key):
    masks = gym.spaces.MultiBinary(3)
    space = gym.spaces.Dict(observation=IMAGE, action_mask=masks)
    masked = ActorCritic(space, ACTIONS["discrete"], hidden=(8,), activation="tanh", shared=False, key=key)
    plain = build(ACTIONS["discrete"], key, hidden=(8,))
    image, mask = jax.random.normal(key, (4, 3, 2)), jnp.array([[1, 0, 1]] * 4, jnp.int8)
    obs = {"observation": image, "action_mask": mask}
    assert (jnp.exp(masked.policy(obs).log_prob(jnp.ones(4, jnp.int32))) == 0).all()
    np.testing.assert_array_equal(masked.policy(obs).logits[:, ::2], plain.policy(image).logits[:, ::2])
    np.testing.assert_array_equal(masked.value(obs), plain.value(image))
    with pytest.raises(WeftError, match="4 entries for Discrete"):
        wrong = gym.spaces.Dict(observation=IMAGE, action_mask=gym.spaces.MultiBinary(4))
        ActorCritic(wrong, ACTIONS["discrete"], hidden=(8,), activation="tanh", shared=False, key=key)


def test_a_squashed_policy_samples_within_the_bounds(key):
    settings = {"hidden": (8,), "activation": "tanh", "shared": True, "key": key}
    net = ActorCritic(IMAGE, ACTIONS["continuous"], **settings, squash=True)
    policy = net.policy(jnp.ones((4, 3, 2)))
    assert isinstance(policy, SquashedGaussian)
    assert jnp.abs(policy.sample(jnp.full((4, 2), 100.0))).max() <= 1


def test_a_gradient_step_on_images_lowers_the_loss(key):
    image = gym.spaces.Box(0, 255, (36, 36, 1), np.uint8)
    settings = {"hidden": (), "activation": "relu", "shared": True, "key": key}
    net = ActorCritic(image, ACTIONS["discrete"], **settings)
    obs = jnp.full((2, 3, 36, 36, 1), 100, jnp.uint8)
    assert net.actor_torso.size == 512 and net.value(obs).shape == (2, 3)
    loss, grads = jax.value_and_grad(objective)(net, obs)
    lower = jax.tree.map(lambda p, g: p - 1e-4 * g, net, grads)
    assert objective(lower, obs) < loss
