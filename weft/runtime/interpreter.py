"""Evaluates the operations of a program as JAX code.

Each kind of operation has one evaluation rule in `RULES`. An equation is evaluated as it was traced, except that a
marked call is replaced by its body, so that the compiled program contains nothing of weft. An equation that asks for
the index of the replica gets it as a first input, so that all replicas run the same compiled program.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
from jax import lax
from jax.core import Tracer

from weft.graph.marks import Mark, mark_of, marks_in, scan_shape
from weft.project.program import Op


@dataclass(frozen=True)
class ReplicaContext:
    """The replica that evaluates: its index, its mesh axis if it has several devices, and whether to add barriers."""

    index: Any = 0
    count: int = 1
    axis: str | None = None
    devices: int = 1
    barriers: bool = False
    """Whether each fragment is enclosed in optimisation barriers."""
    merges: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """What the merges do with each operand, by the identity of their equations. Used with several devices."""


def eval_op(op: Op, context: ReplicaContext, *inputs: Any) -> Sequence[Any]:
    """Returns the results of one operation."""
    return RULES[op.kind](op.params, context, *inputs)


def _equation(params: dict[str, Any], context: ReplicaContext, *inputs: Any) -> Sequence[Any]:
    return eval_equation(params["eqn"], inputs, context)


def _equation_of_replica(params: dict[str, Any], context: ReplicaContext, index: Any, *inputs: Any) -> Sequence[Any]:
    return eval_equation(params["eqn"], inputs, replace(context, index=index))


def _split(params: dict[str, Any], context: ReplicaContext, value: Any) -> Sequence[Any]:
    axis, runs, parts = params["axis"], params.get("runs", 1), params["parts"]
    if runs == 1:
        return jnp.split(value, parts, axis=axis)
    # Each of the `runs` steps that are folded into the axis has rows of every part.
    unfolded = value.reshape(*value.shape[:axis], runs, -1, *value.shape[axis + 1 :])
    shares = jnp.split(unfolded, parts, axis=axis + 1)
    return [share.reshape(*value.shape[:axis], -1, *value.shape[axis + 1 :]) for share in shares]


def _join(params: dict[str, Any], context: ReplicaContext, *shares: Any) -> Sequence[Any]:
    axis, runs = params["axis"], params.get("runs", 1)
    if runs == 1:
        return [jnp.concatenate(shares, axis=axis)]
    shape = shares[0].shape
    unfolded = [share.reshape(*shape[:axis], runs, -1, *shape[axis + 1 :]) for share in shares]
    return [jnp.concatenate(unfolded, axis=axis + 1).reshape(*shape[:axis], -1, *shape[axis + 1 :])]


def sum_of(values: Sequence[Any]) -> Any:
    """Adds arrays from first to last, so that the result has the same bits wherever replicas are merged."""
    return sum(values[1:], start=values[0])


def mean_of(values: Sequence[Any]) -> Any:
    """Averages arrays, added in the same order."""
    return sum_of(values) / jnp.asarray(len(values), values[0].dtype)


MERGES: dict[str, Callable[[Sequence[Any]], Any]] = {"mean": mean_of, "sum": sum_of, "first": lambda values: values[0]}


def merge_values(operation: str, values: Sequence[Any]) -> Any:
    """Combines the values of all replicas, as a merge or a message from several replicas does."""
    name, _, axis = operation.partition(" ")
    return jnp.concatenate(values, axis=int(axis)) if name == "gather" else MERGES[name](values)


RULES: dict[str, Callable[..., Sequence[Any]]] = {
    "equation": _equation,
    "equation of a replica": _equation_of_replica,
    "constant": lambda params, context, value: [jnp.asarray(value)],
    "index": lambda params, context, stack, step: [lax.dynamic_index_in_dim(stack, step, keepdims=False)],
    "split": _split,
    "join": _join,
    "merge": lambda params, context, *values: [merge_values(params["operation"], values)],
}


def eval_equation(eqn: Any, inputs: Sequence[Any], context: ReplicaContext) -> Sequence[Any]:
    """Evaluates one equation, with every mark in it replaced by its body."""
    mark = mark_of(eqn)
    if mark is not None:
        return _eval_mark(mark, eqn, inputs, context)
    if context.barriers and eqn.primitive.name == "dot_general":
        return [_matrix_product(inputs[0], inputs[1], eqn)]
    if marks_in(eqn) or context.barriers and _has_dot(eqn):
        return CONTROL[eqn.primitive.name](eqn.params, inputs, context, eqn)
    bound = eqn.primitive.get_bind_params(dict(eqn.params))
    subfuns, bind_params = bound if isinstance(bound, tuple) else ((), bound)
    results = eqn.primitive.bind(*subfuns, *inputs, **bind_params)
    return results if eqn.primitive.multiple_results else [results]


def eval_jaxpr(closed: Any, inputs: Sequence[Any], context: ReplicaContext) -> list[Any]:
    """Evaluates a closed jaxpr equation by equation."""
    env = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
    env |= dict(zip(closed.jaxpr.invars, inputs, strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, jex.Literal) else env[atom]

    for eqn in closed.jaxpr.eqns:
        env.update(zip(eqn.outvars, eval_equation(eqn, [read(atom) for atom in eqn.invars], context), strict=True))
    return [read(atom) for atom in closed.jaxpr.outvars]


def _eval_mark(mark: Mark, eqn: Any, inputs: Sequence[Any], context: ReplicaContext) -> Sequence[Any]:
    if mark.kind == "replica":
        return [jnp.int32(_replica_index(context) if mark.name == "index" else context.count)]
    if mark.kind == "merge":
        operations = context.merges.get(id(eqn), (mark.name,) * len(inputs))
        return [_merge_devices(*each, context) for each in zip(operations, inputs, strict=True)]
    fence = _fence if context.barriers and mark.kind != "rows" else lambda values: values
    return fence(eval_jaxpr(eqn.params["jaxpr"], fence(inputs), context))


def _merge_devices(operation: str, value: Any, context: ReplicaContext) -> Any:
    """Merges over the devices of one program. The engine merges over replicas."""
    name, _, axis = operation.partition(" ")
    if context.axis is None or name == "first":
        return value
    if name == "gather":
        return lax.all_gather(value, context.axis, axis=int(axis), tiled=True)
    return (lax.pmean if name == "mean" else lax.psum)(value, context.axis)


def _replica_index(context: ReplicaContext) -> Any:
    return context.index if context.axis is None else context.index * context.devices + lax.axis_index(context.axis)


def _fence(values: Sequence[Any]) -> Sequence[Any]:
    return lax.optimization_barrier(list(values)) if values else values


def _eval_call(name: str, params: dict[str, Any], inputs: Sequence[Any], context: ReplicaContext, eqn: Any) -> Any:
    jaxpr = params[name]
    return eval_jaxpr(jaxpr if isinstance(jaxpr, jex.ClosedJaxpr) else jex.ClosedJaxpr(jaxpr, ()), inputs, context)


def _eval_scan(params: dict[str, Any], inputs: Sequence[Any], context: ReplicaContext, eqn: Any) -> Sequence[Any]:
    consts, carried = scan_shape(eqn)
    fixed, carry, rows = inputs[:consts], inputs[consts : consts + carried], inputs[consts + carried :]

    def step(carry: Sequence[Any], rows: Sequence[Any]) -> tuple[Any, Any]:
        results = eval_jaxpr(params["jaxpr"], [*fixed, *carry, *rows], context)
        return results[:carried], results[carried:]

    options = {name: params[name] for name in ("length", "reverse", "unroll")}
    body = jax.make_jaxpr(lambda *values: eval_jaxpr(params["jaxpr"], values, context))(*params["jaxpr"].in_avals)
    if not any(isinstance(const, Tracer) for const in body.consts):
        return eqn.primitive.bind(*inputs, **eqn.params | {"jaxpr": body})
    # The index of the replica is a value of the surrounding program.
    last, stacked = lax.scan(step, list(carry), list(rows), **options)
    return [*last, *stacked]


def _eval_while(params: dict[str, Any], inputs: Sequence[Any], context: ReplicaContext, eqn: Any) -> Sequence[Any]:
    tested, changed = params["cond_nconsts"], params["body_nconsts"]
    for_test, for_body, carry = inputs[:tested], inputs[tested : tested + changed], inputs[tested + changed :]
    return lax.while_loop(
        lambda carry: eval_jaxpr(params["cond_jaxpr"], [*for_test, *carry], context)[0],
        lambda carry: eval_jaxpr(params["body_jaxpr"], [*for_body, *carry], context),
        list(carry),
    )


def _eval_cond(params: dict[str, Any], inputs: Sequence[Any], context: ReplicaContext, eqn: Any) -> Sequence[Any]:
    index, *operands = inputs
    branches = [lambda *values, branch=branch: eval_jaxpr(branch, values, context) for branch in params["branches"]]
    return lax.switch(index, branches, *operands)


def _matrix_product(one: Any, other: Any, eqn: Any) -> Any:
    """A product that is evaluated as a product of matrices, also if an operand has only one row.

    The compiler adds the terms of a product with a vector in another order, so one row would be rounded differently.
    """
    contract, batch = eqn.params["dimension_numbers"]
    operands, axes = [one, other], []
    for side, value in enumerate(operands):
        free = [axis for axis in range(value.ndim) if axis not in batch[side] and axis not in contract[side]]
        if math.prod(value.shape[axis] for axis in free) == 1 and free:
            operands[side] = jnp.concatenate([value, value], axis=free[0])
            before = len(batch[0]) + side * (one.ndim - len(batch[0]) - len(contract[0]))
            axes.append(before)
    result = eqn.primitive.bind(*operands, **eqn.params)
    for axis in axes:
        result = lax.slice_in_dim(result, 0, 1, axis=axis)
    return result


@lru_cache(maxsize=10_000)
def _has_dot(eqn: Any) -> bool:
    """Whether an equation that holds others, and that can be evaluated one by one, holds a product."""
    if eqn.primitive.name not in CONTROL:
        return False
    parts = list(jex.jaxprs_in_params(eqn.params))
    return any(inner.primitive.name == "dot_general" or _has_dot(inner) for part in parts for inner in part.eqns)


CONTROL: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("jit", "pjit", "closed_call", "checkpoint", "remat2"), partial(_eval_call, "jaxpr")),
    **dict.fromkeys(("custom_jvp_call", "custom_vjp_call"), partial(_eval_call, "call_jaxpr")),
    "scan": _eval_scan,
    "while": _eval_while,
    "cond": _eval_cond,
}
"""How equations that hold marks are evaluated, by primitive."""
