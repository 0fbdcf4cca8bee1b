"""Loaded parameters equal the saved ones bit for bit, and a file that does not fit is rejected."""

from dataclasses import dataclass

import equinox as eqx
import hypothesis.extra.numpy as hnp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import WeftError
from weft.report.params import load_params, save_params

DTYPES = ["float32", "float16", "bfloat16", "int32", "uint8", "int8", "bool"]


@st.composite
def arrays(draw):
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
    bits = np.random.default_rng(draw(st.integers(0, 99))).integers(0, 256, shape)
    return jnp.asarray(bits).astype(draw(st.sampled_from(DTYPES)))


def keys():
    shape = hnp.array_shapes(min_dims=0, max_dims=2, max_side=3)
    impl = st.sampled_from(["threefry2x32", "rbg"])
    return st.builds(
        lambda shape, impl: jax.random.split(jax.random.key(3, impl=impl), shape) if shape else jax.random.key(3),
        shape,
        impl,
    )


def trees():
    leaves = st.one_of(arrays(), keys(), st.none())
    names = st.text("abé./' []", min_size=1, max_size=4)
    return st.recursive(
        leaves,
        lambda child: st.one_of(st.lists(child, max_size=3), st.dictionaries(names, child, max_size=3)),
        max_leaves=6,
    )


def same(a, b):
    if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
        return a.dtype == b.dtype and same(jax.random.key_data(a), jax.random.key_data(b))
    return (a.dtype, a.shape) == (b.dtype, b.shape) and np.asarray(a).tobytes() == np.asarray(b).tobytes()


@given(tree=trees())
def test_loading_restores_every_leaf_bit_for_bit(tree, tmp_path_factory):
    path = tmp_path_factory.mktemp("params") / "params.safetensors"
    save_params(path, tree)
    loaded = load_params(path, like=tree)
    assert jax.tree.structure(loaded) == jax.tree.structure(tree)
    assert all(same(a, b) for a, b in zip(jax.tree.leaves(loaded), jax.tree.leaves(tree), strict=True))


def test_a_network_is_loaded_from_shapes_alone(tmp_path, key):
    net = eqx.nn.MLP(4, 2, 8, 1, key=key)
    save_params(tmp_path / "p", net)
    shapes = eqx.filter_eval_shape(eqx.nn.MLP, 4, 2, 8, 1, key=key)
    loaded = load_params(tmp_path / "p", like=shapes)
    assert eqx.tree_equal(loaded, net)


def test_arrays_are_named_by_their_path(tmp_path, key):
    @jax.tree_util.register_dataclass
    @dataclass(frozen=True)
    class Net:
        layers: list[dict[str, jax.Array]]

    save_params(tmp_path / "p", Net([{"w": jnp.ones(2)}]))
    with pytest.raises(WeftError, match=r"also holds net\.layers\[0\]\['w'\]: "):
        load_params(tmp_path / "p", like=Net([]))


def test_arrays_are_saved_in_row_major_order(tmp_path):
    array = np.arange(6.0).reshape(2, 3).T
    save_params(tmp_path / "p", [array])
    assert np.array_equal(load_params(tmp_path / "p", like=[array])[0], array)


@pytest.mark.parametrize(
    ("like", "message"),
    [
        ({"w": jnp.ones(2), "b": jnp.ones(1)}, r"lacks net\['b'\]"),
        ({}, r"also holds net\['w'\]"),
        ({"w": jnp.ones(3)}, r"float32\[2\] in the file, but float32\[3\]"),
        ({"w": jnp.ones(2, jnp.int32)}, r"float32\[2\] in the file, but int32\[2\]"),
        ({"w": jax.random.split(jax.random.key(0), 2)}, r"float32\[2\] in the file, but key<fry>\[2\]"),
    ],
)
def test_the_error_names_the_mismatch(tmp_path, like, message):
    save_params(tmp_path / "p", {"w": jnp.ones(2)})
    with pytest.raises(WeftError, match=message):
        load_params(tmp_path / "p", like=like)


def test_a_key_of_another_implementation_is_rejected(tmp_path):
    save_params(tmp_path / "p", [jax.random.key(0)])
    with pytest.raises(WeftError, match=r"key<fry>\[\] in the file, but key<rbg>"):
        load_params(tmp_path / "p", like=[jax.random.key(0, impl="rbg")])


def test_a_missing_or_truncated_file_is_rejected(tmp_path):
    with pytest.raises(WeftError, match="does not exist"):
        load_params(tmp_path / "p", like=[])
    save_params(tmp_path / "p", [jnp.ones(100)])
    (tmp_path / "p").write_bytes((tmp_path / "p").read_bytes()[:-8])
    with pytest.raises(WeftError, match="not a valid safetensors file"):
        load_params(tmp_path / "p", like=[jnp.ones(100)])
