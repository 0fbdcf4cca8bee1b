"""Parameters as a safetensors file: arrays by name, and nothing that could run.

Each array is named by its path in the pytree (`net.layers[0].weight`). Typed PRNG keys are stored as their data, with
their kind in the file's metadata. Leaves that are not arrays (an activation function) are part of the program and stay
out.

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
from weft.report.files import write_whole

T = TypeVar("T")


def save_params(path: str | Path, params: Any, *, name: str = "net", more: Mapping[str, Any] | None = None) -> None:
    """Write the arrays of `params`, whose own name is `name`, and of `more` by name: all of them or nothing."""
    arrays, kinds = {}, {}
    named = [pair for root, tree in {name: params, **(more or {})}.items() for pair in _named_arrays(tree, root)]
    for leaf_name, leaf in named:
        if _is_key(leaf):
            kinds[leaf_name] = str(jax.random.key_impl(leaf))
            leaf = jax.random.key_data(leaf)
        # The format takes memory as it lies, so it must lie in row-major order.
        arrays[leaf_name] = np.asarray(leaf, order="C")
    write_whole(Path(path), safetensors.numpy.save(arrays, metadata=kinds or None))


def load_params(path: str | Path, like: T, *, name: str = "net") -> T:
    """`like` (arrays, or shapes from `jax.eval_shape`) filled from a file; refused if a name, shape or type differs."""
    arrays = {given: array for given, array in _read(Path(path)).items() if re.match(rf"{re.escape(name)}\b", given)}
    expected = dict(_named_arrays(like, name))
    _match_names(Path(path), set(arrays), set(expected))
    for leaf_name, leaf in expected.items():
        given = arrays[leaf_name]
        if (given.shape, given.dtype) != (leaf.shape, leaf.dtype):
            raise WeftError(f"{path}: {leaf_name} is {_shape(given)} in the file, but {_shape(leaf)} is expected")
    return jax.tree_util.tree_map_with_path(
        lambda where, leaf: _place(arrays[_name(where, name)], leaf) if _is_array(leaf) else leaf, like
    )


def _read(path: Path) -> dict[str, Any]:
    """The file's arrays by name, keys as keys again."""
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            kinds = file.metadata() or {}
            arrays: dict[str, Any] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, no mapping
    except FileNotFoundError:
        raise WeftError(f"{path} does not exist: give the params.safetensors of a finished run") from None
    except (OSError, safetensors.SafetensorError) as error:
        raise WeftError(f"{path} is not a whole safetensors file: {error}") from None
    return arrays | {name: jax.random.wrap_key_data(arrays[name], impl=kind) for name, kind in kinds.items()}


def _match_names(path: Path, given: set[str], expected: set[str]) -> None:
    for what, names in (("lacks", expected - given), ("also holds", given - expected)):
        if names:
            shown = ", ".join(sorted(names)[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
            raise WeftError(f"{path} {what} {shown}: it was written by another network than the one to fill")


def _named_arrays(tree: Any, name: str) -> list[tuple[str, Any]]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return [(_name(where, name), leaf) for where, leaf in leaves if _is_array(leaf)]


def _name(where: tuple[Any, ...], root: str) -> str:
    return root + jax.tree_util.keystr(where)


def _place(given: Any, leaf: Any) -> Any:
    return given if isinstance(leaf, np.ndarray) else jnp.asarray(given)


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray | jax.ShapeDtypeStruct)


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _shape(leaf: Any) -> str:
    return f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]"
