"""From the runs of a role's program to XLA executables.

A run is a flat function from arrays to arrays. Over several devices it is the same function under `shard_map`: every
array then has a leading axis with one entry for each device, so that nothing else needs to know.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh, PartitionSpec

from weft.graph.graph import Value
from weft.project.donation import find_donations
from weft.project.program import Compute, Program
from weft.runtime.devices import AXIS, Devices
from weft.runtime.interpreter import ReplicaContext, eval_op

# For exact comparison. On CPUs XLA drops optimisation barriers before it fuses, and LLVM then contracts a product and a
# sum into one operation that rounds once, or not, as the fusion falls. Without its optimiser it rounds as written.
EXACT = {"cpu": {"xla_backend_optimization_level": 0}}

ONE_DEVICE = Devices()


def compile_program(
    program: Program, context: ReplicaContext, devices: Devices = ONE_DEVICE
) -> dict[Compute, Callable[..., Any]]:
    """An executable for every run of a program, which overwrites those of its inputs that nobody needs any more."""
    donated = find_donations(program)
    options = compiler_options(context)
    return {run: lower_compute(run, context, donate, devices).compile(options) for run, donate in donated.items()}


def compiler_options(context: ReplicaContext) -> dict[str, Any] | None:
    """What XLA must be told."""
    return EXACT.get(jax.default_backend()) if context.barriers else None


def lower_compute(
    run: Compute, context: ReplicaContext, donate: frozenset[Value] = frozenset(), devices: Devices = ONE_DEVICE
) -> Any:
    """A run as a lowered JAX program."""
    function, mesh = compute_function(run, context), devices.mesh
    donated = tuple(i for i, value in enumerate(run.inputs) if value in donate)
    leading = () if mesh is None else (mesh.size,)
    avals = [
        jax.ShapeDtypeStruct((*leading, *value.shape), value.aval.dtype, sharding=devices.sharding)
        for value in run.inputs
    ]
    if mesh is not None:
        function = _over_devices(function, mesh)
    # Where it is must be said of its results too, for a run may have no inputs.
    placed: dict[str, Any] = {"out_shardings": devices.sharding} if devices.places else {}
    return jax.jit(function, donate_argnums=donated, keep_unused=True, **placed).lower(*avals)


def compute_function(run: Compute, context: ReplicaContext) -> Callable[..., list[Any]]:
    """A run as a plain function of its inputs."""

    def function(*inputs: Any) -> list[Any]:
        env = dict(zip(run.inputs, inputs, strict=True))
        for op in run.ops:
            given = [value.const if value.is_const else env[value] for value in op.inputs]
            env.update(zip(op.outputs, eval_op(op, context, *given), strict=True))
        return [env[value] for value in run.outputs]

    return function


def _over_devices(function: Callable[..., list[Any]], mesh: Mesh) -> Callable[..., list[Any]]:
    def local(*inputs: Any) -> list[Any]:
        return [value[None] for value in function(*[value[0] for value in inputs])]

    spec = PartitionSpec(AXIS)
    # Which values agree over devices is checked by weft's own analysis, for every layout alike.
    return jax.shard_map(local, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
