"""Compiles the `Compute` instructions of a role's program to XLA executables.

A `Compute` is a flat function from arrays to arrays. Over several devices it is the same function under `shard_map`,
where every array has a leading axis with one entry per device.
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

# Compiler options for exact comparison. On CPUs XLA drops optimisation barriers before fusion. LLVM may then contract a
# product and a sum into one operation, with one rounding instead of two. Without LLVM's optimiser it never does.
EXACT = {"xla_backend_optimization_level": 0}
# On CPUs a merge over devices blocks a thread of each. A product that waits for a thread of the same pool could then
# wait forever, so products use the thread that calls them.
OWN_THREAD = {"xla_cpu_multi_thread_eigen": False}

ONE_DEVICE = Devices()


def compile_program(
    program: Program, context: ReplicaContext, devices: Devices = ONE_DEVICE
) -> dict[Compute, Callable[..., Any]]:
    """Compiles every `Compute` of a program. Each executable donates the inputs that no later instruction reads."""
    donated = find_donations(program)
    options = compiler_options(context)
    return {
        compute: lower_compute(compute, context, donate, devices).compile(options)
        for compute, donate in donated.items()
    }


def compiler_options(context: ReplicaContext) -> dict[str, Any] | None:
    """Returns XLA's compiler options: for exact rounding if barriers are on, and for programs over several devices."""
    if jax.default_backend() != "cpu":
        return None
    return (EXACT if context.barriers else {}) | (OWN_THREAD if context.devices > 1 else {}) or None


def lower_compute(
    compute: Compute, context: ReplicaContext, donate: frozenset[Value] = frozenset(), devices: Devices = ONE_DEVICE
) -> Any:
    """Lowers a `Compute` with JAX, ready to be compiled."""
    function, mesh = compute_function(compute, context), devices.mesh
    donated = tuple(i for i, value in enumerate(compute.inputs) if value in donate)
    leading = () if mesh is None else (mesh.size,)
    avals = [
        jax.ShapeDtypeStruct((*leading, *value.shape), value.aval.dtype, sharding=devices.sharding)
        for value in compute.inputs
    ]
    if mesh is not None:
        function = _over_devices(function, mesh)
    # A `Compute` may have no inputs, so the sharding of its outputs must be given too.
    out_shardings: dict[str, Any] = {"out_shardings": devices.sharding} if devices.assigned else {}
    return jax.jit(function, donate_argnums=donated, keep_unused=True, **out_shardings).lower(*avals)


def compute_function(compute: Compute, context: ReplicaContext) -> Callable[..., list[Any]]:
    """Returns a `Compute` as a Python function of its inputs."""

    def function(*inputs: Any) -> list[Any]:
        env = dict(zip(compute.inputs, inputs, strict=True))
        for op in compute.ops:
            op_inputs = [value.const if value.is_const else env[value] for value in op.inputs]
            env.update(zip(op.outputs, eval_op(op, context, *op_inputs), strict=True))
        return [env[value] for value in compute.outputs]

    return function


def _over_devices(function: Callable[..., list[Any]], mesh: Mesh) -> Callable[..., list[Any]]:
    def one_device(*inputs: Any) -> list[Any]:
        return [value[None] for value in function(*[value[0] for value in inputs])]

    spec = PartitionSpec(AXIS)
    # weft's own analysis checks which values are equal on all devices, in the same way for every layout.
    return jax.shard_map(one_device, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
