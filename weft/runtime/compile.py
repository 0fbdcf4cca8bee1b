"""From the runs of a role's program to XLA executables.

A run is a flat function from arrays to arrays. Over several devices it is the same function under `shard_map`: every
array then has a leading axis with one entry for each device, so that nothing else needs to know.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from weft.graph.graph import Value
from weft.project.donation import find_donations
from weft.project.program import Program, Run
from weft.runtime.devices import AXIS, device_mesh
from weft.runtime.evaluate import Context, apply

# For exact comparison. On CPUs XLA drops optimisation barriers before it fuses, and LLVM then contracts a product and a
# sum into one operation that rounds once, or not, as the fusion falls. Without its optimiser it rounds as written.
EXACT = {"cpu": {"xla_backend_optimization_level": 0}}


def compile_runs(program: Program, context: Context) -> dict[Run, Callable[..., Any]]:
    """An executable for every run of a program, which overwrites those of its inputs that nobody needs any more."""
    mesh = device_mesh(context.devices) if context.devices > 1 else None
    donated = find_donations(program)
    options = EXACT.get(jax.default_backend()) if context.barriers else None
    return {run: lower_run(run, context, donate, mesh).compile(options) for run, donate in donated.items()}


def lower_run(run: Run, context: Context, donate: frozenset[Value] = frozenset(), mesh: Mesh | None = None) -> Any:
    """A run as a lowered JAX program."""
    function = run_function(run, context)
    donated = tuple(i for i, value in enumerate(run.inputs) if value in donate)
    avals = [jax.ShapeDtypeStruct(value.shape, value.aval.dtype) for value in run.inputs]
    if mesh is not None:
        function, avals = _over_devices(function, mesh), [_stacked(aval, mesh) for aval in avals]
    return jax.jit(function, donate_argnums=donated, keep_unused=True).lower(*avals)


def run_function(run: Run, context: Context) -> Callable[..., list[Any]]:
    """A run as a plain function of its inputs."""

    def function(*inputs: Any) -> list[Any]:
        env = dict(zip(run.inputs, inputs, strict=True))
        for op in run.ops:
            given = [value.const if value.is_const else env[value] for value in op.inputs]
            env.update(zip(op.outputs, apply(op, context, *given), strict=True))
        return [env[value] for value in run.outputs]

    return function


def _over_devices(function: Callable[..., list[Any]], mesh: Mesh) -> Callable[..., list[Any]]:
    def local(*inputs: Any) -> list[Any]:
        return [value[None] for value in function(*[value[0] for value in inputs])]

    spec = PartitionSpec(AXIS)
    # Which values agree over devices is checked by weft's own analysis, for every layout alike.
    return jax.shard_map(local, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)


def _stacked(aval: Any, mesh: Mesh) -> Any:
    shape = (mesh.size, *aval.shape)
    return jax.ShapeDtypeStruct(shape, aval.dtype, sharding=NamedSharding(mesh, PartitionSpec(AXIS)))
