"""Compiles any function of arrays that may contain host calls.

The training loop is projected onto roles. Functions outside the loop, such as the initial state and evaluation, are
not projected, but may contain host calls too. `jit_with_host` makes such a function a program of a single role.

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
    """Compiles `function` for arguments like `args` (arrays or their shapes). Host calls run in the calling thread."""
    closed, result = jax.make_jaxpr(function, return_shape=True)(*args)
    program = _single_role_program(closed)
    executables = compile_program(program, ReplicaContext())
    treedef = jax.tree.structure(result)

    def call(*args: Any) -> Any:
        leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(args)]
        inputs = {index: leaves[index] for index in program.inputs}
        outputs = Executor(program, 0, executables, {}, {}, {}).run_iteration(inputs)
        return jax.tree.unflatten(treedef, [outputs[index] for index in sorted(outputs)])

    return call


def _single_role_program(closed: Any) -> Program:
    inputs = tuple(f"argument[{i}]" for i in range(len(closed.in_avals)))
    outputs = tuple(f"result[{i}]" for i in range(len(closed.out_avals)))
    graph = graph_from_jaxpr(closed, inputs, Layout(ROLE))
    demand = find_demand(graph, (ROLE.name,), 0, outputs, PlacementHints())
    program = assemble(
        [draft_program(ROLE, graph, demand, lambda key, source, dest: Link("pair"), lambda role, node: ())]
    )[ROLE.name]
    # Outputs are numbered after the inputs: an output with an input's index would mean that input's next value.
    return replace(program, outputs={len(inputs) + index: value for index, value in program.outputs.items()})
