"""Any function of arrays as a program of one role: compiled runs, with its host code called between them.

A training loop is projected; what comes before and beside it (the first state, an evaluation) is not, but may hold host
code all the same.

>>> import jax.numpy as jnp
>>> from weft.host import host_call, new_token
>>> def function(x):
...     token, y = host_call(lambda token, x: x + 1, jax.typeof(x), new_token(1), x, name="increment")
...     return 10 * y
>>> jit_with_host(function, jnp.ones(3))(jnp.ones(3)).tolist()
[20.0, 20.0, 20.0]
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from weft.graph.build import graph_from_jaxpr
from weft.layout.layout import Layout, Role
from weft.project.assemble import assemble
from weft.project.demand import PlacementHints, find_demand
from weft.project.emit import draft_program
from weft.project.links import Link
from weft.project.program import Program
from weft.runtime.compile import compile_program
from weft.runtime.executor import Executor
from weft.runtime.interpreter import ReplicaContext

ROLE = Role("all", runs=("*",))


def jit_with_host(function: Callable[..., Any], *args: Any) -> Callable[..., Any]:
    """`function` compiled for arguments like `args` (arrays, or their shapes); its host code runs in the caller."""
    closed, result = jax.make_jaxpr(function, return_shape=True)(*args)
    program = _program(closed)
    executables = compile_program(program, ReplicaContext())
    treedef = jax.tree.structure(result)

    def call(*args: Any) -> Any:
        leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(args)]
        given = {index: leaves[index] for index in program.inputs}
        outputs = Executor(program, 0, executables, {}, {}, {}).iterate(given)
        return jax.tree.unflatten(treedef, [outputs[index] for index in sorted(outputs)])

    return call


def _program(closed: Any) -> Program:
    inputs, outputs = (tuple(f"{what}[{i}]" for i in range(len(avals))) for what, avals in _sides(closed))
    graph = graph_from_jaxpr(closed, inputs, Layout(ROLE))
    demand = find_demand(graph, (ROLE.name,), 0, outputs, PlacementHints())
    program = assemble([draft_program(ROLE, graph, demand, lambda key, source, dest: Link("pair"))])[ROLE.name]
    # No output is the next value of an input, so none may have the number of one.
    return replace(program, outputs={len(inputs) + index: value for index, value in program.outputs.items()})


def _sides(closed: Any) -> tuple[tuple[str, Any], tuple[str, Any]]:
    return ("argument", closed.in_avals), ("result", closed.out_avals)
