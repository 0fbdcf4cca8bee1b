"""Row numbers: a share of the environments knows which rows it holds, and draws the random numbers of these rows.

The loop is traced for a share with fewer environments than the whole. In that trace `jax.random.normal(key, (n,))`
would draw the first n numbers on every replica, and `jnp.arange(n)` would count from 0 on every replica. `number_rows`
reads the trace of the share beside the trace of the whole, and replaces each equation that creates rows by a call that
creates the rows of this replica:

- a draw, or a split of a key, whose result has fewer rows than in the whole: entries of the whole draw. An entry of a
  Threefry draw depends only on the key and its position, so only the replica's own entries are computed. Draws of other
  generators are made whole and cut;
- `iota` along the rows: the numbers of the replica's rows in the whole.

Row numbers often select entries of arrays that the replica holds only in part, as in `values[jnp.arange(n), actions]`.
Such a gather or scatter becomes a call that subtracts the number of the replica's first row again.

The calls are marked `rows:...`, so that later passes know that the results belong to rows. The index of the replica is
an input of the compiled program, so all replicas run the same program.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.random import threefry_2x32

from weft.fragments import ROWS, marked, replica
from weft.graph.marks import jaxpr_params, scan_shape

Columns = tuple[int, ...]
"""For each entry of an array's last axis: the replica's number of rows if the entries are row numbers, else 0."""
Numbered = dict[Any, Columns]
"""By variable of the share's trace that holds row numbers: its columns. An array with one entry covers any number."""


def number_rows(whole: Any, share: Any) -> Any:
    """The closed jaxpr of a share, with its draws and counts of rows replaced by those of the replica's own rows."""
    jaxpr, _ = _Pass().jaxpr(whole.jaxpr, share.jaxpr, {})
    return jex.ClosedJaxpr(jaxpr, share.consts)


def differing_axis(whole: Sequence[int], share: Sequence[int]) -> int | None:
    """The one axis in which two shapes differ, if it is one and the whole is a multiple of the share."""
    if len(whole) != len(share):
        return None
    axes = [axis for axis, (a, b) in enumerate(zip(whole, share, strict=True)) if a != b]
    return axes[0] if len(axes) == 1 and share[axes[0]] and whole[axes[0]] % share[axes[0]] == 0 else None


@dataclass
class _Pass:
    """One run of the pass. `done` holds the jaxprs that were read before, because calls may share them."""

    done: dict[Any, tuple[Any, list[Columns]]] = field(default_factory=dict)

    def jaxpr(self, whole: Any, share: Any, inputs: Numbered) -> tuple[Any, list[Columns]]:
        """The jaxpr of the share with its rows numbered, and the columns of its outputs."""
        given = tuple(inputs.get(var, ()) for var in share.invars)
        key = (whole, share, given)
        if key not in self.done:
            self.done[key] = self.read(whole, share, dict(zip(share.invars, given, strict=True)))
        return self.done[key]

    def read(self, whole: Any, share: Any, numbered: Numbered) -> tuple[Any, list[Columns]]:
        same = [a.primitive for a in whole.eqns] == [b.primitive for b in share.eqns]
        # Traces of different structure are refused later, if a value that depends on them is needed.
        eqns = [self.equation(a, b, numbered) for a, b in zip(whole.eqns, share.eqns, strict=True)] if same else None
        columns = [_columns(numbered, atom) for atom in share.outvars]
        return (share.replace(eqns=eqns) if eqns else share), columns

    def equation(self, whole: Any, share: Any, numbered: Numbered) -> Any:
        """An equation of the share with its rows numbered. Records which of its results are row numbers."""
        name = share.primitive.name
        if name in SOURCES:
            return self.source(whole, share, numbered)
        if any(True for _ in jaxpr_params(share.params)):
            return self.call(whole, share, numbered)
        given = [_columns(numbered, atom) for atom in share.invars]
        if not any(given):
            return share
        if name in PASSING:
            numbered[share.outvars[0]] = PASSING[name](share, given)
        if name == "add":
            # Indexing adds the number of rows to negative row numbers, and there are none.
            return share.replace(invars=[_literal_of(a, b) for a, b in zip(whole.invars, share.invars, strict=True)])
        return _own_entries(whole, share, given[1]) if name in INDEXED else share

    def call(self, whole: Any, share: Any, numbered: Numbered) -> Any:
        """An equation that holds jaxprs, such as a call or a loop. Row numbers pass through calls and into loops."""
        given = [_columns(numbered, atom) for atom in share.invars]
        params = dict(share.params)
        wholes = dict(jaxpr_params(whole.params))
        for name, part in jaxpr_params(share.params):
            if isinstance(part, tuple):
                pairs = zip(wholes[name], part, strict=True) if len(wholes.get(name, ())) == len(part) else ()
                params[name] = tuple(_inner(self, a, b, [])[0] for a, b in pairs) or part
                continue
            params[name], columns = _inner(self, wholes[name], part, _entering(share, given))
            if share.primitive.name in ("jit", "pjit"):
                numbered |= dict(zip(share.outvars, columns, strict=True))
        return share.replace(params=params)

    def source(self, whole: Any, share: Any, numbered: Numbered) -> Any:
        """An equation that may create rows, or that passes row numbers on."""
        name, out = share.primitive.name, share.outvars[0]
        axis = differing_axis(whole.outvars[0].aval.shape, out.aval.shape)
        if name == "iota":
            if axis is None or axis != share.params["dimension"]:
                return share
            numbered[out] = (out.aval.shape[axis],)
            return _call(share, "iota", functools.partial(_own_iota, out.aval, axis))
        operands = [atom.aval.shape for atom in share.invars], [atom.aval.shape for atom in whole.invars]
        if axis is None or operands[0] != operands[1]:
            return share
        draw = functools.partial(_own_draw, share, tuple(whole.params["shape"]), axis)
        return _call(share, name, draw)


THREEFRY = "key<fry>"
"""The dtype of keys of JAX's default generator."""
SOURCES = ("iota", "random_bits", "random_split")
INDEXED = ("gather", "scatter", "scatter-add", "scatter_mul", "scatter_min", "scatter_max")
NEVER: Columns = (-1,)
"""The columns of the comparison of row numbers with 0: no row number is negative."""


def _same(eqn: Any, given: list[Columns]) -> Columns:
    """Reshaping keeps that all entries are row numbers; only a conversion keeps which columns are."""
    return given[0] if len(given[0]) == 1 or eqn.primitive.name == "convert_element_type" else ()


def _negative(eqn: Any, given: list[Columns]) -> Columns:
    other = eqn.invars[1]
    return NEVER if isinstance(other, jex.Literal) and np.all(np.asarray(other.val) == 0) else ()


def _selected(eqn: Any, given: list[Columns]) -> Columns:
    return given[1] if given[0] == NEVER else ()


def _concatenated(eqn: Any, given: list[Columns]) -> Columns:
    last = eqn.outvars[0].aval.ndim - 1
    if eqn.params["dimension"] != last:
        return given[0] if len(set(given)) == 1 else ()
    sizes = [atom.aval.shape[last] for atom in eqn.invars]
    return sum((_expanded(columns, size) for columns, size in zip(given, sizes, strict=True)), ())


PASSING: dict[str, Callable[[Any, list[Columns]], Columns]] = {
    **dict.fromkeys(("broadcast_in_dim", "reshape", "squeeze", "transpose", "convert_element_type", "copy"), _same),
    "lt": _negative,
    "select_n": _selected,
    "concatenate": _concatenated,
}


def _expanded(columns: Columns, size: int) -> Columns:
    return columns if len(columns) == size else (columns or (0,)) * size


def _columns(numbered: Numbered, atom: Any) -> Columns:
    return () if isinstance(atom, jex.Literal) else numbered.get(atom, ())


def _literal_of(whole: Any, share: Any) -> Any:
    return whole if isinstance(whole, jex.Literal) and isinstance(share, jex.Literal) else share


def _entering(eqn: Any, given: list[Columns]) -> list[Columns]:
    """The columns of the inputs of the jaxpr in a call or a loop."""
    name = eqn.primitive.name
    if name in ("jit", "pjit"):
        return given
    if name != "scan":
        return []
    consts, carried = scan_shape(eqn)
    rows = [columns if len(columns) == 1 else () for columns in given[consts + carried :]]
    return [*given[:consts], *[()] * carried, *rows]


def _inner(work: _Pass, whole: Any, share: Any, given: list[Columns]) -> tuple[Any, list[Columns]]:
    """Number the rows of a jaxpr that may be closed."""
    closed = isinstance(share, jex.ClosedJaxpr)
    inner = (whole.jaxpr, share.jaxpr) if closed else (whole, share)
    jaxpr, columns = work.jaxpr(*inner, dict(zip(inner[1].invars, given, strict=False)))
    return (jex.ClosedJaxpr(jaxpr, share.consts) if closed else jaxpr), columns


def _own_entries(whole: Any, share: Any, columns: Columns) -> Any:
    """A gather or scatter in which row numbers count from the replica's first row, where the operand holds only these
    rows. The name of the call lists the columns of the indices for which that is so."""
    numbers, operand, own = share.params["dimension_numbers"], share.invars[0].aval.shape, whole.invars[0].aval.shape
    indexed = getattr(numbers, "start_index_map", None) or numbers.scatter_dims_to_operand_dims
    rows = _expanded(columns, len(indexed))
    local = [k for k, axis in enumerate(indexed) if rows[k] and operand[axis] == rows[k] != own[axis]]
    if not local:
        return share
    first = np.zeros(len(indexed), share.invars[1].aval.dtype)
    first[local] = [rows[k] for k in local]

    def index(operand: Any, indices: Any, *updates: Any) -> Any:
        indices = indices - replica()[0].astype(indices.dtype) * first
        return share.primitive.bind(operand, indices, *updates, **share.params)

    return _call(share, f"{share.primitive.name} {','.join(map(str, local))}", index)


def _call(eqn: Any, name: str, function: Callable[..., Any]) -> Any:
    """An equation with the operands and results of another, that calls a function marked `rows:NAME`."""
    avals = [jax.ShapeDtypeStruct(atom.aval.shape, atom.aval.dtype) for atom in eqn.invars]
    closed = jax.make_jaxpr(marked(ROWS + name, function))(*avals)
    (call,) = closed.eqns
    return call.replace(invars=list(eqn.invars), outvars=list(eqn.outvars))


def _own_iota(aval: Any, axis: int) -> jax.Array:
    numbers = lax.broadcasted_iota(aval.dtype, aval.shape, axis)
    return numbers + (replica()[0] * aval.shape[axis]).astype(aval.dtype)


def _own_draw(eqn: Any, whole: tuple[int, ...], axis: int, keys: jax.Array) -> jax.Array:
    """The replica's own entries of a draw or a split of `keys`, whose result has the shape keys.shape + `whole`."""
    rows, index = eqn.params["shape"][axis - keys.ndim], replica()[0]
    partitionable = jax.config.jax_threefry_partitionable  # pyright: ignore[reportAttributeAccessIssue]
    by_position = partitionable and keys.dtype.name == THREEFRY
    if not by_position or math.prod(whole) >= 2**32:
        drawn = eqn.primitive.bind(keys, **eqn.params | {"shape": whole})
        return lax.dynamic_slice_in_dim(drawn, index * rows, rows, axis)
    draw = functools.partial(_threefry_rows, eqn, whole, axis - keys.ndim, rows, index)
    for _ in range(keys.ndim):
        draw = jax.vmap(draw)
    return draw(keys)


def _threefry_rows(
    eqn: Any, whole: tuple[int, ...], axis: int, rows: int, index: jax.Array, key: jax.Array
) -> jax.Array:
    """Some entries of a Threefry draw. Each depends only on the key and on the entry's position among all."""
    shape = (*whole[:axis], rows, *whole[axis + 1 :])
    position = jnp.zeros(shape, jnp.uint32)
    for dimension, entries in enumerate(whole):
        number = lax.broadcasted_iota(jnp.uint32, shape, dimension)
        if dimension == axis:
            number += (index * rows).astype(jnp.uint32)
        position = position * np.uint32(entries) + number
    low = position.reshape(-1)
    high, low = jnp.split(threefry_2x32(jax.random.key_data(key), jnp.concatenate([jnp.zeros_like(low), low])), 2)
    high, low = high.reshape(shape), low.reshape(shape)
    if eqn.primitive.name == "random_split":
        return jax.random.wrap_key_data(jnp.stack([high, low], axis=-1), impl="threefry2x32")
    width = eqn.params["bit_width"]
    if width == 64:
        return (high.astype(jnp.uint64) << 32) | low.astype(jnp.uint64)
    return (high ^ low).astype(f"uint{width}")
