"""A replica's arrays on its devices.

On one device an array is itself. Over several, every array has a leading axis with one entry for each device: here is
what host code and loops must know of that.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from weft.errors import WeftError

AXIS = "devices"
HostFunction = Callable[..., Sequence[Any]]


@dataclass(frozen=True)
class Devices:
    """The number of devices of a replica."""

    count: int = 1

    def spread(self, parts: Sequence[Any]) -> Any:
        """One array from the parts that each device has of it."""
        if self.count == 1:
            return parts[0]
        return jax.device_put(jnp.stack(parts), NamedSharding(device_mesh(self.count), PartitionSpec(AXIS)))

    def everywhere(self, value: Any) -> Any:
        """The same value on each device."""
        return self.spread([value] * self.count)

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

    def stack(self, steps: Sequence[Any]) -> Any:
        """What a loop collected, as one array that leads with the steps."""
        if self.count > 1:
            return _stack(steps, axis=1)
        if isinstance(steps[0], np.ndarray):
            return np.stack(steps)
        return _stack(steps, axis=0)


def run_inline() -> None:
    """Let compiled runs on the CPU run in the thread that calls them.

    Handing each over to a thread of XLA's costs more than a small run itself: 55 us instead of 19 for a policy of two
    layers of 64, and three times as much between steps of an environment. Without effect once JAX has met its devices.
    """
    jax.config.update("jax_cpu_enable_async_dispatch", False)


def device_mesh(count: int) -> Mesh:
    """A mesh of the first `count` devices."""
    devices = jax.devices()
    if count > len(devices):
        raise WeftError(
            f"the layout asks for {count} devices, but {devices[0].platform} has {len(devices)} here: "
            f"ask for at most {len(devices)}"
        )
    return Mesh(np.array(devices[:count]), (AXIS,))


@functools.cache
def _numbers(devices: Devices, count: int) -> list[Any]:
    return [devices.everywhere(jnp.int32(number)) for number in range(count)]


@jax.jit(static_argnames="axis")
def _stack(steps: Sequence[Any], axis: int) -> Any:
    return jnp.stack(steps, axis=axis)
