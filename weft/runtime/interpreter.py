"""Evaluates the operations of a program as JAX code.

Each kind of operation has one evaluation rule in `RULES`. An equation is evaluated as it was traced, except that a
marked call is replaced by its body, so that the compiled program contains nothing of weft.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
from jax import lax

from weft.graph.marks import Mark, jaxpr_params, mark_of, marks_in
from weft.project.program import Op
from weft.runtime.keys import fold_keys


@dataclass(frozen=True)
class ReplicaContext:
    """The replica that evaluates: its index, its mesh axis if it has several devices, and whether to add barriers."""

    index: int = 0
    count: int = 1
    axis: str | None = None
    devices: int = 1
    barriers: bool = False
    """Whether each fragment is enclosed in optimisation barriers."""


def eval_op(op: Op, context: ReplicaContext, *inputs: Any) -> Sequence[Any]:
    """Returns the results of one operation."""
    return RULES[op.kind](op.params, context, *inputs)


def _equation(params: dict[str, Any], context: ReplicaContext, *inputs: Any) -> Sequence[Any]:
    return eval_equation(params["eqn"], inputs, context)


def _split(params: dict[str, Any], context: ReplicaContext, value: Any) -> Sequence[Any]:
    return jnp.split(value, params["parts"], axis=params["axis"])


def sum_of(values: Sequence[Any]) -> Any:
    """Adds arrays from first to last, so that the result has the same bits wherever replicas are merged."""
    return sum(values[1:], start=values[0])


def mean_of(values: Sequence[Any]) -> Any:
    """Averages arrays, added in the same order."""
    return sum_of(values) / jnp.asarray(len(values), values[0].dtype)


MERGES: dict[str, Callable[[Sequence[Any]], Any]] = {"mean": mean_of, "sum": sum_of}

RULES: dict[str, Callable[..., Sequence[Any]]] = {
    "equation": _equation,
    "constant": lambda params, context, value: [jnp.asarray(value)],
    "index": lambda params, context, stack, step: [lax.dynamic_index_in_dim(stack, step, keepdims=False)],
    "split": _split,
    "join": lambda params, context, *arrays: [jnp.concatenate(arrays, axis=params["axis"])],
    "merge": lambda params, context, *values: [MERGES[params["operation"]](values)],
    "fold": lambda params, context, key, index: [fold_keys(key, _replica_index(context, index))],
}


def eval_equation(eqn: Any, inputs: Sequence[Any], context: ReplicaContext) -> Sequence[Any]:
    """Evaluates one equation, with every mark in it replaced by its body."""
    mark = mark_of(eqn)
    if mark is not None:
        return _eval_mark(mark, eqn, inputs, context)
    params = dict(eqn.params)
    if marks_in(eqn):
        for name, jaxpr in jaxpr_params(eqn.params):
            params[name], consts = _without_marks(jaxpr, context)
            inputs = [*consts, *inputs]
    bound = eqn.primitive.get_bind_params(params)
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
        return [jnp.int32(_replica_index(context, context.index) if mark.name == "index" else context.count)]
    if mark.kind == "merge":
        return _reduce_over_devices(mark.name, inputs, context)
    fence = _fence if context.barriers else lambda values: values
    return fence(eval_jaxpr(eqn.params["jaxpr"], fence(inputs), context))


def _reduce_over_devices(operation: str, inputs: Sequence[Any], context: ReplicaContext) -> Sequence[Any]:
    """Reduces over the devices of one program. The engine reduces over replicas."""
    if context.axis is None:
        return inputs
    reduce = lax.pmean if operation == "mean" else lax.psum
    return [reduce(value, context.axis) for value in inputs]


def _replica_index(context: ReplicaContext, index: Any) -> Any:
    return index if context.axis is None else index * context.devices + lax.axis_index(context.axis)


def _fence(values: Sequence[Any]) -> Sequence[Any]:
    return lax.optimization_barrier(list(values)) if values else values


def _without_marks(param: Any, context: ReplicaContext) -> tuple[Any, Sequence[Any]]:
    """Replaces the marks inside a jaxpr parameter, such as a loop's body. Returns it with inputs to prepend.

    A closed jaxpr holds its own constants. An open jaxpr (as in `remat`) cannot, so its constants become inputs.
    """
    if isinstance(param, tuple):
        return tuple(_without_marks(branch, context)[0] for branch in param), ()
    if isinstance(param, jex.ClosedJaxpr):
        return _retraced(param, context), ()
    retraced = _retraced(jex.ClosedJaxpr(param, ()), context)
    jaxpr = retraced.jaxpr.replace(constvars=(), invars=[*retraced.jaxpr.constvars, *retraced.jaxpr.invars])
    return jaxpr, retraced.consts


def _retraced(closed: Any, context: ReplicaContext) -> Any:
    return jax.make_jaxpr(lambda *inputs: eval_jaxpr(closed, inputs, context))(*closed.in_avals)
