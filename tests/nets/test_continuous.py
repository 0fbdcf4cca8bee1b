import gymnasium as gym
import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from weft.errors import WeftError
from weft.nets.continuous import LOG_STD, Actor, Bounds, Critic, Ensemble, SquashedActor

SETTINGS = {"hidden": (8,), "activation": "relu", "torso": "auto"}
OBS_SPACE = gym.spaces.Box(-1, 1, (4,))
# Few, because each shape is compiled separately.
SHAPES = st.sampled_from([(3,), (), (2, 1)])
EDGES = st.floats(-100, 100, width=32)
WIDTHS = st.floats(0.125, 100, width=32)


@st.composite
def boxes(draw):
    """Bounded boxes of any rank, with different bounds for each coordinate."""
    shape = draw(SHAPES)
    low, width = (
        np.array(draw(st.lists(numbers, min_size=3, max_size=3)), np.float32)[: int(np.prod(shape))].reshape(shape)
        for numbers in (EDGES, WIDTHS)
    )
    return gym.spaces.Box(low, low + width, dtype=np.float32)


def within(space, action):
    return bool(((action >= space.low) & (action <= space.high)).all())


@hypothesis.settings(max_examples=50)
@hypothesis.given(boxes(), st.integers(0, 99))
def test_bounds_rescale_and_clip(space, seed):
    bounds, random = Bounds.of(space), np.random.default_rng(seed)
    x = jnp.asarray(random.uniform(-1, 1, (5, *space.shape)), jnp.float32)
    action = bounds.from_unit(x)
    # Rounding errors are larger if the bounds are far from 0 compared with their distance.
    rounding = np.max(np.maximum(np.abs(space.low), np.abs(space.high)) / bounds.half_range)
    np.testing.assert_allclose(bounds.to_unit(action), x, atol=1e-6 * (1 + rounding))
    far = jnp.asarray(random.normal(0, 3, (5, *space.shape)), jnp.float32)
    assert within(space, action) and within(space, bounds.from_unit(far)) and within(space, bounds.perturb(action, far))
    np.testing.assert_array_equal(bounds.perturb(action, jnp.zeros_like(far)), action)


@hypothesis.settings(max_examples=3)
@hypothesis.given(boxes())
def test_every_bounded_box_has_actors_and_critics(space):
    def act(key, obs):
        actor, policy = (kind(OBS_SPACE, space, **SETTINGS, key=key) for kind in (Actor, SquashedActor))
        action, sample = actor(obs), policy(obs).sample(jax.random.normal(key, (2, 5, *space.shape)))
        critics = Ensemble(lambda key: Critic(OBS_SPACE, space, **SETTINGS, atoms=3, key=key), 2, key=key)
        return action, sample, critics(obs, action)

    action, sample, out = jax.jit(act)(jax.random.key(0), 100 * jnp.ones((2, 5, 4)))
    assert action.shape == sample.shape == (2, 5, *space.shape) and out.shape == (2, 2, 5, 3)
    assert within(space, action) and within(space, sample) and jnp.isfinite(out).all()


def test_the_members_of_an_ensemble_are_independent_networks(key):
    space = gym.spaces.Box(-2, 2, (3,))
    critics = Ensemble(lambda key: Critic(OBS_SPACE, space, **SETTINGS, key=key), 3, key=key)
    obs, action = jax.random.normal(key, (5, 4)), jnp.ones((5, 3))
    out = critics(obs, action)
    separate = [Critic(OBS_SPACE, space, **SETTINGS, key=key)(obs, action) for key in jax.random.split(key, 3)]
    np.testing.assert_allclose(out, jnp.stack(separate), atol=1e-5)
    np.testing.assert_allclose(critics.first(obs, action), out[0], atol=1e-5)
    assert jnp.abs(out[0] - out[1]).min() > 1e-4


def test_the_standard_deviation_depends_on_the_state_and_is_clipped(key):
    policy = SquashedActor(OBS_SPACE, gym.spaces.Box(-1, 1, (2,)), **SETTINGS, key=key)
    log_std = policy(jax.random.normal(key, (5, 4))).log_std
    assert len(np.unique(log_std)) == 10
    extreme = policy(1e6 * jax.random.normal(key, (50, 4))).log_std
    assert (extreme.min(), extreme.max()) == LOG_STD


@pytest.mark.parametrize("kind", [Actor, SquashedActor, Critic])
@pytest.mark.parametrize(
    ("space", "hint"),
    [
        (gym.spaces.Discrete(3), "use dqn or discrete_sac"),
        (gym.spaces.Tuple([gym.spaces.Box(0, 1)]), "use ppo"),
        (gym.spaces.Box(0, np.inf, (2,)), "finite bounds with low < high: use ppo"),
    ],
    ids=str,
)
def test_other_action_spaces_are_rejected(kind, space, hint, key):
    with pytest.raises(WeftError, match=hint):
        kind(OBS_SPACE, space, **SETTINGS, key=key)
