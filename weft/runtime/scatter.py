"""Scatters the state over the replicas of every role, and gathers it again.

A leaf with a batch axis is split along it. A leaf without one is copied to every replica. A role with one share gets a
plain copy.
"""

from typing import Any

import jax
import jax.numpy as jnp

from weft.layout.layout import Role
from weft.project.project import Projection
from weft.runtime.devices import Devices, to_default_device

ReplicaId = tuple[str, int]
"""A role's name and the index of one of its replicas."""
LeafValues = dict[int, Any]
"""Leaves of the state or outputs of a program, by index."""
ReplicaStates = dict[ReplicaId, LeafValues]


@jax.jit
def copy_arrays(leaves: Any) -> Any:
    """Copies arrays to new buffers."""
    return jax.tree.map(jnp.copy, leaves)


def scatter_state(projection: Projection, state: Any) -> ReplicaStates:
    """Returns the leaves that each replica starts from. They are copies, because replicas donate their buffers."""
    leaves = jax.tree.leaves(state)
    return {
        (role.name, index): dict(zip(program.inputs, _replica_leaves(projection, role, index, leaves), strict=True))
        for role in projection.layout.roles
        for index in range(role.replicas)
        for program in [projection.programs[role.name]]
    }


def gather_state(projection: Projection, replica_states: ReplicaStates) -> Any:
    """Builds the whole state from the outputs of all replicas."""
    leaves = []
    for leaf in range(projection.trace.state_tree.num_leaves):
        role, shares = _shares(projection, replica_states, leaf)
        axis = projection.batch_axes[role.name][leaf]
        leaves.append(
            to_default_device(shares[0])
            if axis is None or len(shares) == 1
            else jnp.concatenate([to_default_device(share) for share in shares], axis=axis)
        )
    return jax.tree.unflatten(projection.trace.state_tree, leaves)


def _shares(projection: Projection, replica_states: ReplicaStates, leaf: int) -> tuple[Role, list[Any]]:
    """Returns a leaf's home role, and the leaf's shares on its replicas and their devices, in order."""
    role = projection.layout.role(projection.homes[leaf])
    arrays = [replica_states[role.name, replica][leaf] for replica in range(role.replicas)]
    return role, [array[d] for array in arrays for d in range(role.devices)] if role.devices > 1 else arrays


def _replica_leaves(projection: Projection, role: Role, index: int, leaves: list[Any]) -> list[Any]:
    inputs, axes = projection.programs[role.name].inputs, projection.batch_axes[role.name]
    from_shards = Devices.of(projection.layout, role, index).from_shards
    if role.instances == 1:
        return [from_shards([leaf]) for leaf in copy_arrays([leaves[leaf] for leaf in inputs])]
    shares = range(index * role.devices, (index + 1) * role.devices)
    return [from_shards([_share(leaves[leaf], axes[leaf], role, share) for share in shares]) for leaf in inputs]


def _share(leaf: Any, axis: int | None, role: Role, share: int) -> Any:
    if axis is not None:
        return jnp.split(leaf, role.instances, axis=axis)[share]
    return jnp.copy(leaf)
