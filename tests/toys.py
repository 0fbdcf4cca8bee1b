"""Small training loops for tests of the core: an algorithm from two plain functions, and functions that run it.

Values are small whole numbers, even if the dtype is float, so every result is exact.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np

from weft import Algorithm, Layout, Role, fragment
from weft.project.project import Projection, project
from weft.runtime.local import LocalEngine


@dataclass(frozen=True, kw_only=True)
class Toy(Algorithm):
    """A loop of two functions: `start(env, key)` returns the state, `loop(env, state)` the next state and metrics."""

    num_envs: int = 4
    start: Callable[[Any, jax.Array], Any]
    loop: Callable[[Any, Any], Any]

    def init(self, env: Any, key: jax.Array) -> Any:
        return self.start(env, key)

    def step(self, env: Any, state: Any) -> Any:
        return self.loop(env, state)


def toy(start: Any, loop: Callable[..., Any], num_envs: int = 4) -> Toy:
    """A loop `state -> (state, metrics)` that starts from a state or from `env -> state`.

    If the loop returns a dictionary, it is the state, and there are no metrics.
    """

    def step(env: Any, state: Any) -> Any:
        result = loop(state)
        return (result, {}) if isinstance(result, dict) else result

    return Toy(num_envs=num_envs, start=lambda env, key: start(env) if callable(start) else start, loop=step)


def on(name: str, fn: Callable[..., Any] = lambda x: x * 2 + 1) -> Callable[..., Any]:
    """A fragment with the given name."""
    return fragment(fn, name=name)


def layout_of(**runs: str) -> Layout:
    """A layout with one replica per role, as in `layout_of(one="a b", two="*")`."""
    return Layout(*(Role(name, tuple(names.split())) for name, names in runs.items()))


def replicated(**replicas: int) -> Layout:
    """A layout of roles that each run the fragment with their own name, as in `replicated(a=2, b=1)`."""
    return Layout(*(Role(name, (name,), replicas=count) for name, count in replicas.items()))


def env_of(num_envs: int) -> Any:
    """An environment that is never stepped."""
    return SimpleNamespace(num_envs=num_envs)


def projected(algo: Algorithm, layout: Layout, length: int = 1) -> Projection:
    return project(algo, env_of, layout, length)


def start_of(algo: Algorithm) -> Any:
    return algo.init(env_of(algo.num_envs), jax.random.key(7))


def run(algo: Algorithm, layout: Layout, iterations: int = 3) -> tuple[Any, list[Any]]:
    """The state at the end of a projected run, and the metrics of each iteration."""
    recorded: list[Any] = []
    engine = LocalEngine(projected(algo, layout), stuck_after=20.0)
    ended = engine.run(start_of(algo), iterations, lambda metrics, state: recorded.append(metrics))
    return ended, [jax.tree.map(lambda leaf: leaf[0], metrics) for metrics in recorded]


def plain(algo: Algorithm, iterations: int = 3) -> tuple[Any, list[Any]]:
    """The same under plain `jax.jit`, without projection and engine."""
    step = jax.jit(lambda state: algo.step(env_of(algo.num_envs), state))
    state, metrics = start_of(algo), []
    for _ in range(iterations):
        state, measured = step(state)
        metrics.append(measured)
    return state, metrics


def assert_same(one: Any, other: Any) -> None:
    """Assert that two pytrees have equal structures, dtypes and arrays."""
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for got, want in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert jax.numpy.asarray(got).dtype == jax.numpy.asarray(want).dtype
        np.testing.assert_array_equal(_plain_array(got), _plain_array(want))


def assert_unchanged(algo: Algorithm, layout: Layout, iterations: int = 3) -> None:
    """Assert that a projected run computes the same as the plain loop."""
    assert_same(run(algo, layout, iterations), plain(algo, iterations))


def _plain_array(leaf: Any) -> np.ndarray:
    if jax.dtypes.issubdtype(jax.numpy.asarray(leaf).dtype, jax.dtypes.prng_key):
        return np.asarray(jax.random.key_data(leaf))
    return np.asarray(leaf)
