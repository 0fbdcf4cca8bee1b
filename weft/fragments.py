"""The marks in an algorithm: fragments, merges over replicas, and the index of a replica.

A fragment is a function that a layout may place. The mark does not change what the function computes: it can be called,
jitted, differentiated and tested alone. In a traced program a fragment is a call with a name, and these names are all
that the rest of weft knows about an algorithm.

>>> import jax, jax.numpy as jnp
>>> @fragment
... def double(x):
...     return 2 * x
>>> float(double(jnp.float32(3)))
6.0
>>> [eqn.params["name"] for eqn in jax.make_jaxpr(double)(jnp.float32(3)).eqns]
['fragment:double']
"""

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, overload

import jax
import jax.numpy as jnp
import numpy as np

from weft.errors import WeftError

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

FRAGMENT = "fragment:"
MERGE = "merge:"
REPLICA = "replica:"
HOST = "host:"
ROWS = "rows:"
PER_REPLICA = "per_replica:"


@overload
def fragment(fn: Callable[P, R]) -> Callable[P, R]: ...
@overload
def fragment(*, name: str) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def fragment(fn: Any = None, *, name: str | None = None) -> Any:
    """Mark a function or method as a fragment, with its own name or `name`.

    Arguments that are not arrays (the algorithm itself, an environment, a flag) are static: they must be hashable.
    """

    def mark(function: Any) -> Any:
        return functools.wraps(function)(marked(FRAGMENT + (name or function.__name__), function))

    return mark if fn is None else mark(fn)


def all_mean(tree: T) -> T:
    """Merge each leaf over the replicas of the role that runs this: what one replica with all rows would have.

    With one replica, the tree itself. Sums and means over a replica's rows are parts of those over all rows, and weft
    adds the parts up. Values declared with `per_replica` are averaged.
    """
    return _all_mean(_mergeable(tree, "all_mean", jnp.inexact))


def all_sum(tree: T) -> T:
    """As `all_mean`, for any numbers. Values declared with `per_replica` are added up."""
    return _all_sum(_mergeable(tree, "all_sum", jnp.number))


def all_gather(tree: T, axis: int = 0) -> T:
    """The rows of all replicas of the role that runs this, joined along `axis`. With one replica, the tree itself.

    Each leaf has a row for every environment of the replica along `axis`; the result has one for every environment.
    """
    return marked(f"{MERGE}gather {axis}", lambda tree: _repeated(tree, axis))(jax.tree.map(jnp.asarray, tree))


def per_replica(tree: T) -> T:
    """The tree itself, declared to be the replica's own: what is computed from it may depend on how many there are.

    A permutation of a replica's own rows, for example, is not a part of the permutation of all rows. weft refuses a
    loop that computes such a value by mistake; this says that it is intended. Values computed from it must be merged,
    or belong to rows, before they become part of the state.
    """
    return _per_replica(jax.tree.map(jnp.asarray, tree))


def replica() -> tuple[jax.Array, jax.Array]:
    """The index of this replica and the number of replicas of its role; (0, 1) for a single replica."""
    return _index(), _count()


def share(total: int) -> int:
    """The part of `total` items (states of a table, members of a population) that a replica of the current role holds.

    With one replica, all of them. Leaves of the state with an axis of that size are divided among the replicas.
    """
    if total % _shares.value:
        raise WeftError(f"share({total}) cannot be divided evenly over {_shares.value} replicas: make it a multiple")
    return total // _shares.value


_shares = jax.make_user_context(1)
"""The number of shares of the trace in progress. JAX's caches know it, so traces for other numbers are not reused."""


def tracing_shares(count: int) -> Any:
    """A context in which loops are traced for one of `count` shares of the environments."""
    return _shares(count)


def _repeated(tree: T, axis: int) -> T:
    """The tree at the size of the whole. A replica's program puts the rows of the others in place of the copies."""
    count = _shares.value
    return jax.tree.map(lambda x: jnp.concatenate([x] * count, axis=axis) if count > 1 else x, tree)


_ARRAY = object()


def marked(label: str, fn: Callable[..., Any]) -> Callable[..., Any]:
    """`fn` as one call named `label` in any trace. Its arrays are the operands; all other arguments are static."""

    def named(treedef: Any, static: tuple[Any, ...], *arrays: Any) -> Any:
        remaining = iter(arrays)
        leaves = [next(remaining) if leaf is _ARRAY else leaf for leaf in static]
        args, kwargs = jax.tree.unflatten(treedef, leaves)
        return fn(*args, **kwargs)

    named.__name__ = named.__qualname__ = label
    jitted = jax.jit(named, static_argnums=(0, 1))

    def call(*args: Any, **kwargs: Any) -> Any:
        leaves, treedef = jax.tree.flatten((args, kwargs))
        static = tuple(_ARRAY if _is_array(leaf) else leaf for leaf in leaves)
        return jitted(treedef, static, *[leaf for leaf in leaves if _is_array(leaf)])

    return call


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray | np.generic)


def _mergeable(tree: T, merge: str, kind: Any) -> T:
    """The tree with arrays as leaves. Rejects dtypes that the merge would change."""
    arrays = jax.tree.map(jnp.asarray, tree)
    for path, leaf in jax.tree_util.tree_leaves_with_path(arrays):
        if not jnp.issubdtype(leaf.dtype, kind):
            where = jax.tree_util.keystr(path) or "its argument"
            raise WeftError(f"{merge} of {where}, which is {leaf.dtype}: cast it to a dtype of kind {kind.__name__}")
    return arrays


_all_mean = marked(MERGE + "mean", lambda tree: tree)
_all_sum = marked(MERGE + "sum", lambda tree: tree)
_per_replica = marked(PER_REPLICA, lambda tree: tree)
_index = marked(REPLICA + "index", lambda: jnp.int32(0))
_count = marked(REPLICA + "count", lambda: jnp.int32(1))
