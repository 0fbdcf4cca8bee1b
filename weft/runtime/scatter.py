"""Sharing out a state over the replicas of each role, and putting it together again.

A leaf with a batch axis is divided along it; a leaf without one goes to everybody, and a random key is folded with the
number of the share, so that no two replicas draw the same numbers. With one share nothing changes.
"""

from typing import Any

import jax
import jax.numpy as jnp

from weft.layout.layout import Role
from weft.project.links import is_key
from weft.project.project import Projection
from weft.runtime.devices import Devices
from weft.runtime.keys import fold_keys

ReplicaStates = dict[tuple[str, int], dict[int, Any]]


@jax.jit
def copy_arrays(leaves: Any) -> Any:
    """The same arrays, in memory of their own."""
    return jax.tree.map(jnp.copy, leaves)


def scatter_state(projection: Projection, state: Any) -> ReplicaStates:
    """For every replica, the leaves of the state that it starts from; copies, so that it may overwrite them."""
    leaves = jax.tree.leaves(state)
    return {
        (role.name, index): dict(zip(program.inputs, _replica_leaves(projection, role, index, leaves), strict=True))
        for role in projection.layout.roles
        for index in range(role.replicas)
        for program in [projection.programs[role.name]]
    }


def gather_state(projection: Projection, ends: ReplicaStates) -> Any:
    """The whole state, from the outputs of all replicas."""
    leaves = []
    for leaf in range(projection.trace.state_tree.num_leaves):
        role, parts = _parts(projection, ends, leaf)
        axis = projection.batch_axes[role.name][leaf]
        leaves.append(_here(parts[0]) if axis is None or len(parts) == 1 else _joined(parts, axis))
    return jax.tree.unflatten(projection.trace.state_tree, leaves)


def _joined(parts: list[Any], axis: int) -> Any:
    """One array from parts that may be on different devices."""
    return jnp.concatenate([_here(part) for part in parts], axis=axis)


def _here(part: Any) -> Any:
    """The same on the first device, where a state is whole."""
    return jax.device_put(part, jax.devices()[0])


def _parts(projection: Projection, outputs: ReplicaStates, index: int) -> tuple[Role, list[Any]]:
    """An output's parts in order of their shares, from the role that is its home."""
    role = projection.layout.role(projection.homes[index])
    arrays = [outputs[role.name, replica][index] for replica in range(role.replicas)]
    return role, [array[d] for array in arrays for d in range(role.devices)] if role.devices > 1 else arrays


def _replica_leaves(projection: Projection, role: Role, index: int, leaves: list[Any]) -> list[Any]:
    wanted, axes = projection.programs[role.name].inputs, projection.batch_axes[role.name]
    spread = Devices.of(projection.layout, role, index).spread
    if role.instances == 1:
        return [spread([leaf]) for leaf in copy_arrays([leaves[leaf] for leaf in wanted])]
    shares = range(index * role.devices, (index + 1) * role.devices)
    return [spread([_share(leaves[leaf], axes[leaf], role, share) for share in shares]) for leaf in wanted]


def _share(leaf: Any, axis: int | None, role: Role, share: int) -> Any:
    if axis is not None:
        return jnp.split(leaf, role.instances, axis=axis)[share]
    return fold_keys(leaf, share) if is_key(leaf) else jnp.copy(leaf)
