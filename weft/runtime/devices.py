"""A replica's arrays on its devices.

On one device an array is itself. Over several, every array has a leading axis with one entry for each device: here is
what host code, messages and loops must know of that.
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
    """The devices of a replica: so many, at places that may be given."""

    count: int = 1
    places: tuple[Any, ...] = ()

    @classmethod
    def of(cls, layout: Layout, role: Role, index: int) -> "Devices":
        """Those of one replica: the role's devices are given out in turn."""
        # Where some roles are elsewhere, the default device must be named too: what comes to it may come from there.
        elsewhere = any(other.on or other.devices > 1 for other in layout.roles)
        on = role.on or (("0",) if elsewhere and role.devices == 1 else ())
        turn = range(index * role.devices, (index + 1) * role.devices)
        return cls(role.devices, tuple(find_device(on[number % len(on)]) for number in turn) if on else ())

    @property
    def mesh(self) -> Mesh | None:
        """The mesh of several devices."""
        return None if self.count == 1 else device_mesh(self.count, self.places)

    @property
    def sharding(self) -> Sharding | None:
        """Where arrays are; None is the default device."""
        if self.count > 1:
            return NamedSharding(device_mesh(self.count, self.places), PartitionSpec(AXIS))
        return SingleDeviceSharding(self.places[0]) if self.places else None

    def spread(self, parts: Sequence[Any]) -> Any:
        """One array from the parts that each device has of it."""
        if self.count == 1:
            return jax.device_put(parts[0], self.sharding) if self.places else parts[0]
        mesh = device_mesh(self.count, self.places)
        shards = [jax.device_put(part, device)[None] for part, device in zip(parts, mesh.devices.flat, strict=True)]
        shape = (self.count, *shards[0].shape[1:])
        return jax.make_array_from_single_device_arrays(shape, NamedSharding(mesh, PartitionSpec(AXIS)), shards)

    def everywhere(self, value: Any) -> Any:
        """The same value on each device."""
        return self.spread([value] * self.count)

    def bring(self, tree: Any) -> Any:
        """Arrays from elsewhere, on each device."""
        return jax.tree.map(self.everywhere, tree) if self.places or self.count > 1 else tree

    def parts(self, value: Any) -> Sequence[Any]:
        """What each device has of an array."""
        return (value,) if self.count == 1 else _shards(value, self.count)

    def one(self, value: Any) -> Any:
        """What the first device has of an array."""
        return self.parts(value)[0]

    def out(self, value: Any) -> Any:
        """An array on the default device, wherever it was."""
        return jax.device_put(value, jax.devices()[0])

    def back(self, value: Any) -> Any:
        """What was brought out, where it came from."""
        return self.spread([value] if self.count == 1 else list(value))

    def numbers(self, count: int) -> list[Any]:
        """The numbers below `count`, on each device: made once."""
        return _numbers(self, count)

    def each(self, function: HostFunction) -> HostFunction:
        """Host code that is called once for each device, with that device's part."""
        if self.count == 1:
            return function

        def call(*inputs: Any) -> Sequence[Any]:
            results = [function(*[value[device] for value in inputs]) for device in range(self.count)]
            return [self.spread(parts) for parts in zip(*results, strict=True)]

        return call

    def stack(self, columns: Sequence[Sequence[Any]]) -> list[Any]:
        """What a loop collected, each as one array that leads with the steps."""
        # By the last step: what a loop starts from may come from elsewhere.
        on_host = [self.count == 1 and isinstance(steps[-1], np.ndarray) for steps in columns]
        others = [steps for steps, host in zip(columns, on_host, strict=True) if not host]
        stacked = iter(_stack(others, axis=0 if self.count == 1 else 1) if others else ())
        return [np.array(steps) if host else next(stacked) for steps, host in zip(columns, on_host, strict=True)]


def disable_async_cpu_dispatch() -> None:
    """Let compiled runs on the CPU run in the thread that calls them.

    Handing each over to a thread of XLA's costs more than a small run itself: 55 us instead of 19 for a policy of two
    layers of 64, and three times as much between steps of an environment. Without effect once JAX has met its devices.
    """
    jax.config.update("jax_cpu_enable_async_dispatch", False)


def find_device(name: str) -> Any:
    """The device that `1`, `gpu`, `gpu:1` or `cpu:0` stands for."""
    kind, _, number = ("", "", name) if name.isdecimal() else name.partition(":")
    try:
        devices = jax.devices(kind or None)
    except RuntimeError:
        devices = []
    if not name or (number and not number.isdecimal()) or int(number or 0) >= len(devices):
        known = ", ".join(f"{device.platform}:{device.id}" for device in jax.devices())
        raise WeftError(f"there is no device {name!r} here: give one of {known}, or its number")
    return devices[int(number or 0)]


def device_mesh(count: int, places: tuple[Any, ...] = ()) -> Mesh:
    """A mesh of the given devices, or of the first `count`."""
    devices = places or jax.devices()
    if count > len(devices):
        raise WeftError(
            f"the layout asks for {count} devices, but {devices[0].platform} has {len(devices)} here: "
            f"ask for at most {len(devices)}"
        )
    if len(set(devices[:count])) < count:
        raise WeftError(f"a role over {count} devices needs {count} different ones: {', '.join(map(str, places))}")
    return Mesh(np.array(devices[:count]), (AXIS,))


def _shards(value: Any, count: int) -> list[Any]:
    shards = sorted(value.addressable_shards, key=lambda shard: shard.index[0].start or 0)
    return [shard.data[0] for shard in shards] if len(shards) == count else [value[d] for d in range(count)]


@functools.cache
def _numbers(devices: Devices, count: int) -> list[Any]:
    return [devices.everywhere(jnp.int32(number)) for number in range(count)]


@jax.jit(static_argnames="axis")
def _stack(columns: Sequence[Sequence[Any]], axis: int) -> list[Any]:
    return [jnp.stack(steps, axis=axis) for steps in columns]
