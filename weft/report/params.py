"""Saves and loads parameters as a safetensors file, which holds arrays by name and no code.

Each array is named by its path in the pytree (`net.layers[0].weight`). Typed PRNG keys are stored as their data, with
their implementation in the file's metadata. Leaves that are not arrays (an activation function) are not saved.

>>> import tempfile
>>> params = {"weight": jnp.ones((2, 3)), "key": jax.random.key(7)}
>>> with tempfile.TemporaryDirectory() as folder:
...     save_params(Path(folder) / "params.safetensors", params)
...     loaded = load_params(Path(folder) / "params.safetensors", like=params)
>>> loaded["key"] == params["key"]
Array(True, dtype=bool)
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy

from weft.errors import WeftError
from weft.report.files import write_atomically

T = TypeVar("T")


def save_params(path: str | Path, params: Any, *, name: str = "net", more: Mapping[str, Any] | None = None) -> None:
    """Write the arrays of `params` under `name`, and of each tree in `more` under its name. Atomic."""
    arrays, key_impls = {}, {}
    named = [pair for root, tree in {name: params, **(more or {})}.items() for pair in _named_arrays(tree, root)]
    for leaf_name, leaf in named:
        if _is_key(leaf):
            key_impls[leaf_name] = str(jax.random.key_impl(leaf))
            leaf = jax.random.key_data(leaf)
        # The format copies memory without its strides, so it must be in row-major order.
        arrays[leaf_name] = np.asarray(leaf, order="C")
    write_atomically(Path(path), safetensors.numpy.save(arrays, metadata=key_impls or None))


def load_params(path: str | Path, like: T, *, name: str = "net") -> T:
    """Returns `like` (arrays, or shapes from `jax.eval_shape`) with the arrays of a file.

    Raises `WeftError` if a name, shape or dtype differs.
    """
    arrays = {key: array for key, array in _read(Path(path)).items() if re.match(rf"{re.escape(name)}\b", key)}
    expected = dict(_named_arrays(like, name))
    _match_names(Path(path), set(arrays), set(expected))
    for leaf_name, leaf in expected.items():
        array = arrays[leaf_name]
        if (array.shape, array.dtype) != (leaf.shape, leaf.dtype):
            raise WeftError(f"{path}: {leaf_name} is {_shape(array)} in the file, but {_shape(leaf)} is expected")
    return jax.tree_util.tree_map_with_path(
        lambda keys, leaf: _like_leaf(arrays[_name(keys, name)], leaf) if _is_array(leaf) else leaf, like
    )


def _read(path: Path) -> dict[str, Any]:
    """Returns the file's arrays by name, with PRNG keys restored."""
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            key_impls = file.metadata() or {}
            arrays: dict[str, Any] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, not a mapping
    except FileNotFoundError:
        raise WeftError(f"{path} does not exist: give the params.safetensors of a finished run") from None
    except (OSError, safetensors.SafetensorError) as error:
        raise WeftError(f"{path} is not a valid safetensors file: {error}") from None
    return arrays | {name: jax.random.wrap_key_data(arrays[name], impl=impl) for name, impl in key_impls.items()}


def _match_names(path: Path, found: set[str], expected: set[str]) -> None:
    for difference, names in (("lacks", expected - found), ("also holds", found - expected)):
        if names:
            shown = ", ".join(sorted(names)[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
            raise WeftError(f"{path} {difference} {shown}: it was saved from a different network")


def _named_arrays(tree: Any, name: str) -> list[tuple[str, Any]]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return [(_name(keys, name), leaf) for keys, leaf in leaves if _is_array(leaf)]


def _name(keys: tuple[Any, ...], root: str) -> str:
    return root + jax.tree_util.keystr(keys)


def _like_leaf(array: Any, leaf: Any) -> Any:
    return array if isinstance(leaf, np.ndarray) else jnp.asarray(array)


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray | jax.ShapeDtypeStruct)


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _shape(leaf: Any) -> str:
    return f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]"
