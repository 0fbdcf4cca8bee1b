"""Host code in a training loop: any Python, called with arrays and giving arrays of declared shapes.

`host_call` is to weft what `jax.pure_callback` is to JAX, with two differences. It takes and returns a *token*, an
array of the state that makes the calls of one host object follow each other; and weft runs it itself, between compiled
runs of device code, wherever a layout places the fragment around it. Outside weft, under `jax.jit`, it is a callback.

Host code that keeps something between calls (an environment, a table) keeps it in `objects()`, which belongs to the run
and ends with it.

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
    """A token before its first call: the number of calls so far, for each environment that a replica may get."""
    return jnp.zeros(num_envs, jnp.uint32)


def host_call(function: Callable[..., Any], result: Any, token: jax.Array, *args: Any, name: str) -> tuple[Any, Any]:
    """Call `function(token, *args)` on the host, after the call that gave `token`: the next token, and the result.

    `function` gets NumPy arrays and returns arrays like `result`, a pytree of shapes and types. It is a fragment called
    `name`. It may be called from another thread than the last time, but never from two at once.
    """

    leaves, treedef = jax.tree.flatten((token, *args))
    declared, structure = jax.tree.flatten(result)
    expected = [(tuple(aval.shape), np.dtype(aval.dtype)) for aval in declared]

    def called(*leaves: Any) -> list[Any]:
        token, *args = treedef.unflatten([np.asarray(leaf) for leaf in leaves])
        arrays = _flat(function(token, *args), structure, expected, name)
        return [token + ONE, *arrays]

    def body(*leaves: Any) -> Any:
        return io_callback(called, [jax.ShapeDtypeStruct(token.shape, token.dtype), *declared], *leaves)

    call = marked(FRAGMENT + name, marked(HOST + name, body))
    token, *results = call(*[jnp.asarray(leaf) for leaf in leaves])
    return token, structure.unflatten(results)


class Objects:
    """What host code keeps between its calls in one run."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._kept: dict[Any, Any] = {}
        self._count = 0

    def number(self, count: int) -> int:
        """The first of `count` numbers that nobody else in the run has."""
        with self.lock:
            self._count += count
            return self._count - count

    def get(self, key: Any) -> Any:
        """What is kept under `key`, or None."""
        return self._kept.get(key)

    def keep(self, key: Any, kept: T) -> T:
        """Keep an object with a `close` method until it is dropped or the run ends."""
        self._kept[key] = kept
        return kept

    def drop(self, unwanted: Callable[[Any], bool]) -> None:
        """Close and forget what nobody will ask for again."""
        for key, kept in list(self._kept.items()):
            if unwanted(kept):
                self._kept.pop(key).close()

    def refuse_overdue(self) -> None:
        """Fail if host code has not come back for too long, by its own account; asked while others wait for it."""
        for kept in list(self._kept.values()):
            if error := getattr(kept, "overdue", lambda: None)():
                raise error

    def close(self) -> None:
        """Close everything; the first error is raised when all are closed."""
        errors = []
        for key in list(self._kept):
            try:
                self._kept.pop(key).close()
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]


def objects() -> Objects:
    """The objects of the run that this code belongs to; outside any run, those of the process."""
    return _current.get()


@contextmanager
def own_objects() -> Iterator[Objects]:
    """A run's own objects, closed at its end."""
    kept = Objects()
    reset = _current.set(kept)
    try:
        yield kept
    finally:
        _current.reset(reset)
        kept.close()


_of_process = Objects()
_current: ContextVar[Objects] = ContextVar("objects", default=_of_process)  # noqa: B039, shared by design


def _flat(result: Any, structure: Any, expected: list[tuple[tuple[int, ...], np.dtype]], name: str) -> list[Any]:
    """The result as a list of arrays, refused where it is not what was declared."""
    try:
        arrays = [np.asarray(leaf) for leaf in structure.flatten_up_to(result)]
    except ValueError:
        raise WeftError(
            f"host code {name!r} returned {jax.tree.structure(result)}, but it declares {structure}"
        ) from None
    for array, (shape, dtype) in zip(arrays, expected, strict=True):
        if array.shape != shape or array.dtype != dtype:
            raise WeftError(
                f"host code {name!r} returned {array.dtype}{list(array.shape)} where it declares {dtype}{list(shape)}"
            )
    return arrays
