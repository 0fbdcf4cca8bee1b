"""The devices of a replica, and the layout of its arrays on them.

On one device an array is itself. On several devices every array has a leading axis with one entry per device. Host
calls, messages and loops handle that axis through the methods of `Devices`.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from weft.errors import WeftError
from weft.layout.layout import Layout, Role

AXIS = "devices"
HostFunction = Callable[..., Sequence[Any]]


@dataclass(frozen=True)
class Devices:
    """The devices of one replica."""

    count: int = 1
    assigned: tuple[Any, ...] = ()
    """The devices that the layout names, or empty for the default ones."""

    @classmethod
    def of(cls, layout: Layout, role: Role, index: int) -> "Devices":
        """Returns the devices of one replica. The replicas use the devices of their role in turn."""
        # If other roles name devices, the default device must be named too: arrays may arrive from those devices.
        others_named = any(other.on or other.devices > 1 for other in layout.roles)
        on = role.on or (("0",) if others_named and role.devices == 1 else ())
        positions = range(index * role.devices, (index + 1) * role.devices)
        return cls(role.devices, tuple(find_device(on[position % len(on)]) for position in positions) if on else ())

    @property
    def mesh(self) -> Mesh | None:
        """The mesh, if there are several devices."""
        return None if self.count == 1 else device_mesh(self.count, self.assigned)

    @property
    def sharding(self) -> Sharding | None:
        """The sharding of the replica's arrays, or None for the default device."""
        if self.count > 1:
            return NamedSharding(device_mesh(self.count, self.assigned), PartitionSpec(AXIS))
        return SingleDeviceSharding(self.assigned[0]) if self.assigned else None

    def from_shards(self, shards: Sequence[Any]) -> Any:
        """Builds one array from one shard per device."""
        if self.count == 1:
            return jax.device_put(shards[0], self.sharding) if self.assigned else shards[0]
        mesh = device_mesh(self.count, self.assigned)
        arrays = [jax.device_put(shard, device)[None] for shard, device in zip(shards, mesh.devices.flat, strict=True)]
        shape = (self.count, *arrays[0].shape[1:])
        return jax.make_array_from_single_device_arrays(shape, NamedSharding(mesh, PartitionSpec(AXIS)), arrays)

    def replicate(self, value: Any) -> Any:
        """Builds an array with the same value on each device."""
        return self.from_shards([value] * self.count)

    def transfer(self, tree: Any) -> Any:
        """Copies arrays that may be on other devices to each of these devices."""
        return jax.tree.map(self.replicate, tree) if self.assigned or self.count > 1 else tree

    def shards(self, value: Any) -> Sequence[Any]:
        """Returns the shard of an array on each device."""
        return (value,) if self.count == 1 else _shards(value, self.count)

    def first_shard(self, value: Any) -> Any:
        return self.shards(value)[0]

    def from_default_device(self, value: Any) -> Any:
        """Moves an array from the default device, where `to_default_device` put it, back to these devices."""
        return self.from_shards([value] if self.count == 1 else list(value))

    def step_indices(self, count: int) -> list[Any]:
        """Returns the indices below `count`, replicated over the devices. They are created once and cached."""
        return _step_indices(self, count)

    def per_device(self, function: HostFunction) -> HostFunction:
        """Makes a host function that is called once per device, with the shards of that device."""
        if self.count == 1:
            return function

        def call(*inputs: Any) -> Sequence[Any]:
            results = [function(*[value[device] for value in inputs]) for device in range(self.count)]
            return [self.from_shards(shards) for shards in zip(*results, strict=True)]

        return call

    def stack_steps(self, columns: Sequence[Sequence[Any]]) -> list[Any]:
        """Stacks the values that a loop collected in each step; the result's first axis is the step."""
        # Decided by the last step, because the first value of a loop's carry may come from elsewhere.
        on_host = [self.count == 1 and isinstance(steps[-1], np.ndarray) for steps in columns]
        others = [steps for steps, host in zip(columns, on_host, strict=True) if not host]
        stacked = iter(_stack(others, axis=0 if self.count == 1 else 1) if others else ())
        return [np.array(steps) if host else next(stacked) for steps, host in zip(columns, on_host, strict=True)]


def disable_async_cpu_dispatch() -> None:
    """Makes compiled programs on the CPU execute in the calling thread.

    Handing a program to a thread of XLA costs more than a small program itself: 55 us instead of 19 for a policy of two
    layers of 64, and three times as much between environment steps. No effect after JAX has initialised its devices.
    """
    jax.config.update("jax_cpu_enable_async_dispatch", False)


def to_default_device(value: Any) -> Any:
    """Moves an array to the default device."""
    return jax.device_put(value, jax.devices()[0])


def find_device(name: str) -> Any:
    """Returns the device named `1`, `gpu`, `gpu:1` or `cpu:0`."""
    kind, _, number = ("", "", name) if name.isdecimal() else name.partition(":")
    try:
        devices = jax.devices(kind or None)
    except RuntimeError:
        devices = []
    if not name or (number and not number.isdecimal()) or int(number or 0) >= len(devices):
        known = ", ".join(f"{device.platform}:{device.id}" for device in jax.devices())
        raise WeftError(f"there is no device {name!r}: use one of {known}, or its number")
    return devices[int(number or 0)]


def device_mesh(count: int, assigned: tuple[Any, ...] = ()) -> Mesh:
    """Builds a mesh of the assigned devices, or of the first `count` devices."""
    devices = assigned or jax.devices()
    if count > len(devices):
        raise WeftError(
            f"the layout asks for {count} devices, but this machine has {len(devices)} of kind {devices[0].platform}: "
            f"ask for at most {len(devices)}"
        )
    if len(set(devices[:count])) < count:
        raise WeftError(
            f"a role over {count} devices needs {count} different ones, got {', '.join(map(str, assigned))}"
        )
    return Mesh(np.array(devices[:count]), (AXIS,))


def _shards(value: Any, count: int) -> list[Any]:
    shards = sorted(value.addressable_shards, key=lambda shard: shard.index[0].start or 0)
    return [shard.data[0] for shard in shards] if len(shards) == count else [value[d] for d in range(count)]


@functools.cache
def _step_indices(devices: Devices, count: int) -> list[Any]:
    return [devices.replicate(jnp.int32(index)) for index in range(count)]


@jax.jit(static_argnames="axis")
def _stack(columns: Sequence[Sequence[Any]], axis: int) -> list[Any]:
    return [jnp.stack(steps, axis=axis) for steps in columns]
