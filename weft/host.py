"""Host code in a training loop: a Python function that is called with arrays and returns arrays of declared shapes.

`host_call` resembles `jax.pure_callback`, with two differences. It takes and returns an *order token*, an array of the
state that counts calls: each call takes the token that the previous call returned, so the calls of one host object have
an order. And weft calls the function itself, between compiled segments, in the role that the layout gives its fragment
to. Outside weft, under `jax.jit`, a host call is a callback.

Host code that needs an object for several calls (an environment, a table) stores it in `objects()`, the registry of the
training run. The registry closes its objects when the run ends.

>>> import jax.numpy as jnp
>>> def double(token, x):
...     return 2 * x
>>> token, y = host_call(double, jax.ShapeDtypeStruct((2,), jnp.float32), new_token(2), jnp.ones(2), name="double")
>>> y.tolist(), token.tolist()
([2.0, 2.0], [1, 1])
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from weft.errors import WeftError
from weft.fragments import FRAGMENT, HOST, marked

T = TypeVar("T")

ONE = np.uint32(1)


def new_token(num_envs: int) -> jax.Array:
    """An order token before the first call. It counts calls, once for each environment, so replicas can divide it."""
    return jnp.zeros(num_envs, jnp.uint32)


def host_call(function: Callable[..., Any], result: Any, token: jax.Array, *args: Any, name: str) -> tuple[Any, Any]:
    """Call `function(token, *args)` on the host, after the call that returned `token`. Returns (next token, result).

    `function` receives NumPy arrays and returns arrays like `result`, a pytree of shapes and dtypes. The call is a
    fragment named `name`. A replica makes one call at a time, possibly from different threads. Replicas of
    a role make theirs at the same time, so a function with state keeps it by replica, as in `objects()`.
    """
    leaves, treedef = jax.tree.flatten((token, *args))
    declared, structure = jax.tree.flatten(result)
    expected = [(tuple(aval.shape), np.dtype(aval.dtype)) for aval in declared]

    def callback(*leaves: Any) -> list[Any]:
        token, *args = treedef.unflatten([np.asarray(leaf) for leaf in leaves])
        arrays = _flat(function(token, *args), structure, expected, name)
        return [token + ONE, *arrays]

    def body(*leaves: Any) -> Any:
        return io_callback(callback, [jax.ShapeDtypeStruct(token.shape, token.dtype), *declared], *leaves)

    call = marked(FRAGMENT + name, marked(HOST + name, body))
    token, *results = call(*[jnp.asarray(leaf) for leaf in leaves])
    return token, structure.unflatten(results)


class HostObjects:
    """The registry of the objects that host code uses in more than one call of a training run."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        """Hold it from looking an object up until adding it."""
        self._objects: dict[Any, Any] = {}
        self._count = 0

    def reserve_numbers(self, count: int) -> int:
        """Reserve `count` consecutive numbers, unique in the run. Returns the first."""
        with self.lock:
            self._count += count
            return self._count - count

    def get(self, key: Any) -> Any:
        """The object with this key, or None."""
        return self._objects.get(key)

    def add(self, key: Any, value: T) -> T:
        """Add an object. Its `close` method is called when the run ends, or earlier by `close_where`."""
        self._objects[key] = value
        return value

    def close_where(self, unused: Callable[[Any], bool]) -> None:
        """Close and remove the objects for which `unused` returns true."""
        for key, value in list(self._objects.items()):
            if unused(value):
                self._objects.pop(key).close()

    def raise_overdue(self) -> None:
        """Raise the error of an object whose `overdue` method returns one: its current call takes too long."""
        for value in list(self._objects.values()):
            if error := getattr(value, "overdue", lambda: None)():
                raise error

    def close(self) -> None:
        """Close all objects, then raise the first error."""
        errors = []
        for key in list(self._objects):
            try:
                self._objects.pop(key).close()
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]


def objects() -> HostObjects:
    """The registry of the training run that this code belongs to; outside any run, the registry of the process."""
    return _current.get()


@contextmanager
def own_objects() -> Iterator[HostObjects]:
    """Give the enclosed code a registry of its own, and close its objects at the end."""
    registry = HostObjects()
    reset = _current.set(registry)
    try:
        yield registry
    finally:
        _current.reset(reset)
        registry.close()


_of_process = HostObjects()
_current: ContextVar[HostObjects] = ContextVar("objects", default=_of_process)  # noqa: B039, shared by design


def _flat(result: Any, structure: Any, expected: list[tuple[tuple[int, ...], np.dtype]], name: str) -> list[Any]:
    """The result as a list of arrays. Rejects arrays that differ from their declaration."""
    try:
        arrays = [np.asarray(leaf) for leaf in structure.flatten_up_to(result)]
    except ValueError:
        raise WeftError(
            f"host code {name!r} returned {jax.tree.structure(result)}, but it declares {structure}: return the "
            "declared structure, or declare another result in host_call"
        ) from None
    for array, (shape, dtype) in zip(arrays, expected, strict=True):
        if array.shape != shape or array.dtype != dtype:
            raise WeftError(
                f"host code {name!r} returned {array.dtype}{list(array.shape)} where it declares {dtype}{list(shape)}: "
                "return an array of the declared dtype and shape, or declare another result in host_call"
            )
    return arrays
