"""What each operation of a run computes, as JAX code: the table from operations to functions.

An equation is bound as it was traced, except that marked calls dissolve into their bodies, so that nothing of weft is
left in the compiled program.
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
    """Who evaluates: a replica's number, its device axis if it spans several, and whether fragments are fenced."""

    index: int = 0
    count: int = 1
    axis: str | None = None
    devices: int = 1
    barriers: bool = False


def eval_op(op: Op, context: ReplicaContext, *inputs: Any) -> Sequence[Any]:
    """The results of one operation."""
    return RULES[op.kind](op.params, context, *inputs)


def _equation(params: dict[str, Any], context: ReplicaContext, *inputs: Any) -> Sequence[Any]:
    return eval_equation(params["eqn"], inputs, context)


def _split(params: dict[str, Any], context: ReplicaContext, value: Any) -> Sequence[Any]:
    return jnp.split(value, params["parts"], axis=params["axis"])


def sum_of(parts: Sequence[Any]) -> Any:
    """The sum of arrays, first to last: the same bits wherever replicas are merged."""
    return sum(parts[1:], start=parts[0])


def mean_of(parts: Sequence[Any]) -> Any:
    """The mean of arrays, in the same order."""
    return sum_of(parts) / jnp.asarray(len(parts), parts[0].dtype)


MERGES: dict[str, Callable[[Sequence[Any]], Any]] = {"mean": mean_of, "sum": sum_of}

RULES: dict[str, Callable[..., Sequence[Any]]] = {
    "equation": _equation,
    "constant": lambda params, context, value: [jnp.asarray(value)],
    "index": lambda params, context, stack, step: [lax.dynamic_index_in_dim(stack, step, keepdims=False)],
    "split": _split,
    "join": lambda params, context, *parts: [jnp.concatenate(parts, axis=params["axis"])],
    "merge": lambda params, context, *parts: [MERGES[params["operation"]](parts)],
    "fold": lambda params, context, key, index: [fold_keys(key, _replica(context, index))],
}


def eval_equation(eqn: Any, inputs: Sequence[Any], context: ReplicaContext) -> Sequence[Any]:
    """Evaluate one equation, with every mark in it dissolved."""
    mark = mark_of(eqn)
    if mark is not None:
        return _marked(mark, eqn, inputs, context)
    params = dict(eqn.params)
    if marks_in(eqn):
        for name, part in jaxpr_params(eqn.params):
            params[name], consts = _dissolved(part, context)
            inputs = [*consts, *inputs]
    bound = eqn.primitive.get_bind_params(params)
    subfuns, bind_params = bound if isinstance(bound, tuple) else ((), bound)
    results = eqn.primitive.bind(*subfuns, *inputs, **bind_params)
    return results if eqn.primitive.multiple_results else [results]


def eval_jaxpr(closed: Any, inputs: Sequence[Any], context: ReplicaContext) -> list[Any]:
    """Evaluate a closed jaxpr equation by equation."""
    env = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
    env |= dict(zip(closed.jaxpr.invars, inputs, strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, jex.Literal) else env[atom]

    for eqn in closed.jaxpr.eqns:
        env.update(zip(eqn.outvars, eval_equation(eqn, [read(atom) for atom in eqn.invars], context), strict=True))
    return [read(atom) for atom in closed.jaxpr.outvars]


def _marked(mark: Mark, eqn: Any, inputs: Sequence[Any], context: ReplicaContext) -> Sequence[Any]:
    if mark.kind == "replica":
        return [jnp.int32(_replica(context, context.index) if mark.name == "index" else context.count)]
    if mark.kind == "merge":
        return _merged(mark.name, inputs, context)
    fence = _fence if context.barriers else lambda values: values
    return fence(eval_jaxpr(eqn.params["jaxpr"], fence(inputs), context))


def _merged(operation: str, inputs: Sequence[Any], context: ReplicaContext) -> Sequence[Any]:
    """Over the devices of one program; over replicas it is the engine that merges."""
    if context.axis is None:
        return inputs
    reduce = lax.pmean if operation == "mean" else lax.psum
    return [reduce(value, context.axis) for value in inputs]


def _replica(context: ReplicaContext, index: Any) -> Any:
    return index if context.axis is None else index * context.devices + lax.axis_index(context.axis)


def _fence(values: Sequence[Any]) -> Sequence[Any]:
    return lax.optimization_barrier(list(values)) if values else values


def _dissolved(part: Any, context: ReplicaContext) -> tuple[Any, Sequence[Any]]:
    """A jaxpr in a parameter (a loop's body, a branch) with the marks in it dissolved, and inputs to put first.

    A closed jaxpr keeps its constants; an open one (of `remat`) has no place for them, so they become inputs.
    """
    if isinstance(part, tuple):
        return tuple(_dissolved(item, context)[0] for item in part), ()
    if isinstance(part, jex.ClosedJaxpr):
        return _retraced(part, context), ()
    again = _retraced(jex.ClosedJaxpr(part, ()), context)
    return again.jaxpr.replace(constvars=(), invars=[*again.jaxpr.constvars, *again.jaxpr.invars]), again.consts


def _retraced(closed: Any, context: ReplicaContext) -> Any:
    return jax.make_jaxpr(lambda *inputs: eval_jaxpr(closed, inputs, context))(*closed.in_avals)
