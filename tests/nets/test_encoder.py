import gymnasium as gym
import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from tests.nets.spaces import SPACES, batch
from weft.envs.spaces import is_masked, without_mask
from weft.errors import WeftError
from weft.nets.conv import Impala, Nature
from weft.nets.encoder import Encoder, ImageEncoder, NumericEncoder


def kind(space, torso="auto"):
    entries = jax.eval_shape(lambda key: Encoder(space, torso=torso, key=key), jax.random.key(0)).entries
    return type(entries.network if isinstance(entries, ImageEncoder) else entries)


def box(*shape, dtype=np.uint8):
    return gym.spaces.Box(0, 255, shape, dtype)


@hypothesis.settings(max_examples=15)
@hypothesis.given(SPACES, st.sampled_from([(), (3,), (2, 3)]))
def test_every_space_is_encoded_with_any_leading_axes(space, shape):
    encoder = Encoder(space, key=jax.random.key(0))
    features = encoder(batch(space, *shape))
    assert features.shape == (*shape, encoder.size) and features.dtype == jnp.float32
    assert jnp.isfinite(features).all()


@hypothesis.settings(max_examples=15)
@hypothesis.given(SPACES)
def test_encoding_without_images_equals_gymnasiums_flatten(space):
    rows = batch(space, 2)
    features = Encoder(space, torso="mlp", key=jax.random.key(0))(rows)
    for i, row in enumerate(features):
        element = jax.tree.map(lambda x, i=i: np.asarray(x[i]), rows)
        expected = gym.spaces.utils.flatten(unscaled(space), unscaled_element(space, element))
        np.testing.assert_allclose(row, expected, rtol=1e-6)


def unscaled(space):
    """Returns the space with float entries, and with bytes rescaled to fractions."""
    if isinstance(space, gym.spaces.Dict):
        return gym.spaces.Dict({name: unscaled(part) for name, part in space.items()})
    if isinstance(space, gym.spaces.Tuple):
        return gym.spaces.Tuple([unscaled(part) for part in space])
    return gym.spaces.Box(0, 5, space.shape, np.float64) if isinstance(space, gym.spaces.Box) else space


def unscaled_element(space, x):
    if isinstance(space, gym.spaces.Dict):
        return {name: unscaled_element(part, x[name]) for name, part in space.items()}
    if isinstance(space, gym.spaces.Tuple):
        return tuple(unscaled_element(part, x[i]) for i, part in enumerate(space))
    return x / np.float64(255) if space.dtype == np.uint8 else x


@pytest.mark.parametrize(
    ("space", "torso", "expected"),
    [
        (box(84, 84, 4), "auto", Nature),
        (box(4, 84, 84), "auto", Nature),
        (box(36, 40, 3), "auto", Nature),
        (box(35, 84, 3), "auto", NumericEncoder),
        (box(84, 84), "auto", NumericEncoder),
        (box(84, 84, 4, dtype=np.float32), "auto", NumericEncoder),
        (box(84, 84, 4, dtype=np.float32), "nature", Nature),
        (box(84, 84, 4), "mlp", NumericEncoder),
        (box(84, 84, 4), "impala", Impala),
        (box(10, 10, 4, dtype=np.float32), "impala", Impala),
    ],
    ids=str,
)
def test_the_torso_depends_on_the_space_unless_it_is_given(space, torso, expected):
    assert kind(space, torso) is expected


def test_channels_are_the_shorter_of_the_first_and_the_last_axis(key):
    last = batch(box(40, 36, 3), 2)
    first = jnp.moveaxis(last, -1, 1)
    ours, theirs = Encoder(box(40, 36, 3), key=key), Encoder(box(3, 40, 36), key=key)
    assert theirs.entries.channels_first and not ours.entries.channels_first
    np.testing.assert_allclose(ours(last), theirs(first), rtol=1e-4, atol=1e-5)


def test_each_image_of_a_dict_has_its_own_network(key):
    space = gym.spaces.Dict(left=box(36, 36, 1), right=box(36, 36, 1), speed=gym.spaces.Box(-1, 1, (2,)))
    encoder = Encoder(space, key=key)
    obs = batch(space, 2, 3)
    assert encoder(obs).shape == (2, 3, 512 + 512 + 2) and encoder.size == 1026
    weights = [encoder.entries[side].network.last.weight for side in ("left", "right")]
    assert not jnp.array_equal(*weights)
    np.testing.assert_array_equal(encoder(obs)[..., -2:], obs["speed"])


def test_bytes_are_rescaled_exactly_once(key):
    image = box(36, 36, 2)
    encoder = Encoder(image, key=key)
    obs = batch(image, 2)
    floats = Encoder(box(36, 36, 2, dtype=np.float32), torso="nature", key=key)
    np.testing.assert_allclose(encoder(obs), floats(obs.astype(jnp.float32) / 255), rtol=1e-5)
    vector = Encoder(box(2), key=key)
    np.testing.assert_allclose(vector(jnp.array([0, 255], jnp.uint8)), [0, 1])


def test_spaces_that_cannot_be_encoded_are_rejected(key):
    with pytest.raises(WeftError, match="is not supported"):
        Encoder(gym.spaces.Text(4), key=key)
    with pytest.raises(WeftError, match="torso=nature needs images"):
        Encoder(gym.spaces.Box(0, 1, (4,)), torso="nature", key=key)
    with pytest.raises(WeftError, match="at least 36 pixels per side.*10x10: use torso=impala"):
        Encoder(box(10, 10, 4), torso="nature", key=key)


def test_only_a_dict_of_observation_and_action_mask_is_masked():
    vector, mask = gym.spaces.Box(0, 1, (4,)), gym.spaces.MultiBinary(3)
    masked = gym.spaces.Dict(observation=vector, action_mask=mask)
    assert is_masked(masked) and without_mask(masked) == vector
    for space in (vector, gym.spaces.Dict(observation=vector), gym.spaces.Dict(**masked.spaces, goal=vector)):
        assert not is_masked(space) and without_mask(space) == space
