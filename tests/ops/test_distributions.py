import distrax
import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.stats

from weft.errors import WeftError
from weft.ops.distributions import (
    MASKED_LOGIT,
    Categorical,
    DiagonalGaussian,
    Product,
    SquashedGaussian,
    action_size,
    draw_noise,
)

LOW, HIGH = (-1.0, 0.0), (3.0, 0.5)


@pytest.fixture
def squashed(key):
    mean, log_std = 0.7 * jax.random.normal(key, (2, 6, 2))
    return SquashedGaussian(mean, log_std, LOW, HIGH)


def oracle(policy):
    """The same squashed distribution in distrax."""
    low, high = np.asarray(LOW), np.asarray(HIGH)
    stretch = distrax.ScalarAffine(shift=jnp.asarray((low + high) / 2), scale=jnp.asarray((high - low) / 2))
    normal = distrax.Normal(policy.mean, jnp.exp(policy.log_std))
    return distrax.Transformed(normal, distrax.Chain([stretch, distrax.Tanh()]))


def test_categorical_equals_distrax(key):
    logits = 3 * jax.random.normal(key, (6, 4))
    action = jnp.array([0, 1, 2, 3, 0, 1], jnp.int32)
    expected = distrax.Categorical(logits)
    np.testing.assert_allclose(Categorical(logits).log_prob(action), expected.log_prob(action), rtol=1e-5)
    np.testing.assert_allclose(Categorical(logits).entropy(), expected.entropy(), rtol=1e-5)
    np.testing.assert_array_equal(Categorical(logits).mode(), expected.mode())


def test_gaussian_equals_scipy(key):
    mean, log_std, action = np.asarray(jax.random.normal(key, (3, 6, 2)))
    expected = scipy.stats.norm(mean, np.exp(log_std))
    policy = DiagonalGaussian(jnp.asarray(mean), jnp.asarray(log_std))
    np.testing.assert_allclose(policy.log_prob(jnp.asarray(action)), expected.logpdf(action).sum(axis=-1), rtol=1e-4)
    np.testing.assert_allclose(policy.entropy(), expected.entropy().sum(axis=-1), rtol=1e-4)
    np.testing.assert_array_equal(policy.mode(), mean)


def test_squashed_gaussian_equals_distrax(squashed, key):
    noise = draw_noise(gym.spaces.Box(np.float32(LOW), np.float32(HIGH)), key, (6,))
    action = squashed.sample(noise)
    with jax.numpy_dtype_promotion("standard"):
        expected = oracle(squashed).log_prob(action).sum(axis=-1)
    np.testing.assert_allclose(squashed.log_prob(action), expected, rtol=1e-3, atol=1e-4)
    both = squashed.sample_and_log_prob(noise)
    np.testing.assert_array_equal(both[0], action)
    np.testing.assert_allclose(both[1], expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("mean", "log_std"), [(0.0, 0.0), (1.5, -1.0), (-0.5, 0.7)])
def test_the_density_of_a_squashed_gaussian_integrates_to_1_and_to_its_entropy(mean, log_std):
    x = 1 + 2 * np.tanh(np.linspace(-7, 7, 20_001, dtype=np.float32))
    column = np.full((len(x), 1), 1, np.float32)
    policy = SquashedGaussian(jnp.asarray(mean * column), jnp.asarray(log_std * column), LOW[:1], HIGH[:1])
    log_prob = np.asarray(policy.log_prob(jnp.asarray(x[:, None])), np.float64)
    mass = scipy.integrate.trapezoid(np.exp(log_prob), x)
    entropy = -scipy.integrate.trapezoid(np.exp(log_prob) * log_prob, x)
    np.testing.assert_allclose(mass, 1, atol=1e-3)
    np.testing.assert_allclose(policy.entropy()[0], entropy, atol=1e-2)


def test_squashed_samples_stay_within_the_bounds_and_have_finite_log_probabilities():
    noise = jnp.linspace(-50, 50, 202).reshape(101, 2)
    policy = SquashedGaussian(jnp.zeros((101, 2)), jnp.full((101, 2), 1.0), LOW, HIGH)

    @jax.grad
    def gradient(log_std):
        policy = SquashedGaussian(jnp.zeros((101, 2)), log_std, LOW, HIGH)
        action, log_prob = policy.sample_and_log_prob(noise)
        return jnp.sum(action) + jnp.sum(log_prob) + jnp.sum(policy.log_prob(action)) + jnp.sum(policy.entropy())

    action = policy.sample(noise)
    assert ((action >= jnp.array(LOW)) & (action <= jnp.array(HIGH))).all()
    assert jnp.isfinite(policy.log_prob(action)).all() and jnp.isfinite(policy.sample_and_log_prob(noise)[1]).all()
    assert jnp.isfinite(jax.jit(gradient)(policy.log_std)).all()
    np.testing.assert_allclose(policy.mode(), jnp.broadcast_to(jnp.array([1.0, 0.25]), (101, 2)))


def test_categorical_samples_have_the_given_probabilities(key):
    probabilities = jnp.array([0.1, 0.2, 0.7])
    noise = draw_noise(gym.spaces.Discrete(3), key, (100_000,))
    actions = Categorical(jnp.broadcast_to(jnp.log(probabilities), noise.shape)).sample(noise)
    assert actions.dtype == jnp.int32
    np.testing.assert_allclose(jnp.bincount(actions) / len(actions), probabilities, atol=0.01)


def test_gaussian_samples_have_the_given_mean_and_standard_deviation(key):
    noise = draw_noise(gym.spaces.Box(-1, 1, (2,)), key, (100_000,))
    mean, log_std = jnp.array([1.0, -2.0]), jnp.array([0.0, 1.0])
    samples = DiagonalGaussian(*(jnp.broadcast_to(x, noise.shape) for x in (mean, log_std))).sample(noise)
    np.testing.assert_allclose(samples.mean(axis=0), mean, atol=0.03)
    np.testing.assert_allclose(samples.std(axis=0), jnp.exp(log_std), rtol=0.02)


def test_masked_choices_are_never_sampled(key):
    logits = jnp.where(jnp.arange(4) % 2 == 0, jax.random.normal(key, (1000, 4)), MASKED_LOGIT)
    policy = Categorical(logits)
    actions = policy.sample(draw_noise(gym.spaces.Discrete(4), key, (1000,)))
    assert (actions % 2 == 0).all() and (policy.mode() % 2 == 0).all()
    assert (jnp.exp(policy.log_prob(jnp.ones(1000, jnp.int32))) == 0).all()
    two = distrax.Categorical(logits[:, ::2])
    np.testing.assert_allclose(policy.entropy(), two.entropy(), rtol=1e-5)

    def objective(logits):
        policy = Categorical(logits)
        return jnp.sum(policy.log_prob(actions)) + jnp.sum(policy.entropy())

    gradient = jax.grad(objective)(logits)
    assert jnp.isfinite(gradient).all() and (gradient[:, 1::2] == 0).all()


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_coordinates_add_up(rank, key):
    """The last `rank` axes are one action: what they say together is the sum of what each says."""
    shape = (5, 3, 2)
    wide, one = Categorical(jax.random.normal(key, (*shape, 4)), rank), jax.random.normal(key, shape)
    bounds = {"low": (0.0,) * 6, "high": (1.0,) * 6} if rank == 2 else {"low": (0.0,) * 2, "high": (1.0,) * 2}
    alone = {"low": (0.0,), "high": (1.0,), "rank": 0}
    pairs = [
        (wide, Categorical(wide.logits), jnp.ones(shape, jnp.int32)),
        (DiagonalGaussian(one, one, rank), DiagonalGaussian(one, one, 0), one),
    ]
    if rank:
        pairs += [(SquashedGaussian(one, one, **bounds, rank=rank), SquashedGaussian(one, one, **alone), one / 10)]
    for together, apart, action in pairs:
        axes = tuple(range(3 - rank, 3))
        np.testing.assert_allclose(together.log_prob(action), apart.log_prob(action).sum(axis=axes), rtol=1e-5)
        np.testing.assert_allclose(together.entropy(), apart.entropy().sum(axis=axes), rtol=1e-5)


def test_a_product_is_its_parts(key):
    space = gym.spaces.Dict(
        move=gym.spaces.Box(-1, 1, (2,)), jump=gym.spaces.Tuple([gym.spaces.Discrete(3), gym.spaces.Discrete(3)])
    )
    noise = draw_noise(space, key, (5,))
    move = DiagonalGaussian(jnp.ones((5, 2)), jnp.zeros((5, 2)))
    jump = Categorical(jax.random.normal(key, (5, 3)))
    policy = Product({"move": move, "jump": (jump, Product((jump,)).parts[0])})
    action = policy.sample(noise)
    assert action["move"].shape == (5, 2) and [x.shape for x in action["jump"]] == [(5,), (5,)]
    assert not jnp.array_equal(noise["jump"][0], noise["jump"][1]), "no noise is drawn twice"
    parts = [move.log_prob(action["move"]), *(jump.log_prob(x) for x in action["jump"])]
    np.testing.assert_allclose(policy.log_prob(action), sum(parts[1:], parts[0]), rtol=1e-6)
    np.testing.assert_allclose(policy.entropy(), move.entropy() + 2 * jump.entropy(), rtol=1e-6)
    assert jax.tree.structure(policy.mode()) == jax.tree.structure(action)
    assert jax.tree.structure(jax.jit(lambda policy: policy)(policy)) == jax.tree.structure(policy)


@pytest.mark.parametrize(
    ("space", "shape", "size"),
    [
        (gym.spaces.Discrete(3, start=1), (7, 3), 3),
        (gym.spaces.MultiDiscrete([2, 4]), (7, 2, 4), 6),
        (gym.spaces.MultiDiscrete([[2, 2], [2, 2]]), (7, 2, 2, 2), 8),
        (gym.spaces.MultiBinary(3), (7, 3, 2), 6),
        (gym.spaces.Box(0, 1, (2, 2)), (7, 2, 2), 4),
        (gym.spaces.Box(0, 1, ()), (7,), 1),
    ],
    ids=str,
)
def test_noise_and_parameters_follow_the_space(space, shape, size, key):
    assert draw_noise(space, key, (7,)).shape == shape
    assert action_size(space) == size


def test_other_action_spaces_are_refused():
    with pytest.raises(WeftError, match="no policy for action space"):
        action_size(gym.spaces.Text(3))
