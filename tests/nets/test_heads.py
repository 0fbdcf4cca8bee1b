import gymnasium as gym
import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.nets.spaces import SPACES, batch, shapes
from weft.envs.spaces import map_space
from weft.errors import WeftError
from weft.nets.heads import check_mask, policy_head
from weft.ops.distributions import action_size, choices, draw_noise

ACTIONS = gym.spaces.Dict(
    move=gym.spaces.MultiDiscrete([2, 4]), tool=gym.spaces.Discrete(3), aim=gym.spaces.Box(-1, 1, (2,))
)


def mask_space(space):
    """Returns the space of action masks with the structure of `space`."""
    if isinstance(space, gym.spaces.Dict):
        return gym.spaces.Dict({name: mask_space(part) for name, part in space.items()})
    if isinstance(space, gym.spaces.Tuple):
        return gym.spaces.Tuple([mask_space(part) for part in space])
    return gym.spaces.MultiBinary(action_size(space))


@hypothesis.settings(max_examples=6)
@hypothesis.given(SPACES)
def test_every_action_space_has_a_policy(space):

    def act(key):
        policy = policy_head(space, 4, squash=True, key=key)(jax.random.normal(key, (2, 3, 4)))
        action = policy.sample(draw_noise(space, key, (2, 3)))
        return action, policy.mode(), (policy.log_prob(action), policy.entropy())

    action, best, numbers = act(jax.random.key(0))
    assert shapes(action) == shapes(best) == shapes(batch(space, 2, 3))
    assert all(x.shape == (2, 3) and jnp.isfinite(x).all() for x in numbers)
    for part, taken in zip(jax.tree.leaves(map_space(lambda part: part, space)), jax.tree.leaves(action), strict=True):
        within(part, taken)


def within(space, action):
    if choices(space) is None:
        assert action.dtype == jnp.float32 and (action >= 0).all() and (action <= 5).all()
    else:
        counts = np.reshape(choices(space), space.shape)
        assert action.dtype == jnp.int32 and (action >= 0).all() and (action < counts).all()


@hypothesis.settings(max_examples=6)
@hypothesis.given(SPACES)
def test_a_masked_action_is_never_taken(space):
    """The mask leaves one action for each coordinate, which is always taken."""

    def last_of_each(part):
        if choices(part) is None:
            return jnp.ones((3, action_size(part)), jnp.int8)
        row = np.concatenate([np.arange(n) == n - 1 for n in choices(part)])
        return jnp.tile(jnp.asarray(row, jnp.int8), (3, 1))

    def act(key, mask):
        policy = policy_head(space, 4, key=key)(jax.random.normal(key, (3, 4)), mask)
        return policy.sample(draw_noise(space, key, (3,)))

    check_mask(mask_space(space), space)
    actions = jax.tree.leaves(act(jax.random.key(0), map_space(last_of_each, space)))
    for part, action in zip(jax.tree.leaves(map_space(lambda part: part, space)), actions, strict=True):
        if choices(part) is not None:
            assert (action == np.reshape(choices(part), part.shape) - 1).all()


def test_a_mask_keeps_the_other_logits_and_finite_gradients(key):
    space = gym.spaces.MultiDiscrete([2, 4])
    head, features = policy_head(space, 4, key=key), jax.random.normal(key, (5, 4))
    unmasked = head(features)
    assert unmasked.logits.shape == (5, 2, 4)
    all_allowed = head(features, jnp.ones((5, 6), bool))
    np.testing.assert_array_equal(unmasked.logits, all_allowed.logits)
    assert (jnp.exp(unmasked.log_prob(jnp.array([[3, 0]] * 5, jnp.int32))) == 0).all(), (
        "the first coordinate has two values, not four"
    )

    def objective(head, mask):
        policy = head(features, mask)
        return jnp.sum(policy.entropy()) + jnp.sum(policy.log_prob(jnp.array([[1, 2]] * 5, jnp.int32)))

    for mask in (jnp.array([[0, 1, 0, 1, 1, 0]] * 5), jnp.zeros((5, 6), jnp.int8)):
        value, grads = jax.value_and_grad(objective)(head, mask)
        assert jnp.isfinite(value) and all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(grads))


@pytest.mark.parametrize(
    "mask",
    [
        gym.spaces.MultiBinary(3),
        gym.spaces.Dict(**{**mask_space(ACTIONS).spaces, "tool": gym.spaces.MultiBinary(4)}),
        gym.spaces.Dict(tool=gym.spaces.MultiBinary(3), hand=gym.spaces.MultiBinary(3)),
    ],
    ids=str,
)
def test_a_mask_of_the_wrong_structure_is_rejected(mask):
    with pytest.raises(WeftError, match="action mask"):
        check_mask(mask, ACTIONS)


def test_a_dict_of_masks_may_omit_entries(key):
    check_mask(gym.spaces.Dict(tool=gym.spaces.MultiBinary(3)), ACTIONS)
    head, features = policy_head(ACTIONS, 4, key=key), jnp.ones((5, 4))
    policy = head(features, {"tool": jnp.array([[0, 0, 1]] * 5, jnp.int8)})
    assert policy.mode()["tool"].tolist() == [2] * 5
    np.testing.assert_array_equal(policy.parts["move"].logits, head(features).parts["move"].logits)


@pytest.mark.parametrize("low", [-np.inf, 5.0, -3e38])
def test_a_box_without_finite_bounds_is_not_squashed(low, key):
    high = 3e38 if low == -3e38 else 5.0
    space = gym.spaces.Box(np.float32([0, low]), np.float32([1, high]))
    policy = policy_head(space, 4, squash=True, key=key)(jnp.ones((3, 4)))
    assert not hasattr(policy, "low") and policy.sample(jnp.full((3, 2), 9.0)).max() > 5
