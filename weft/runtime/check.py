"""Proving that a layout changes nothing: run it and another from one seed, and compare every bit.

The other is the fused program. A layout with lanes is compared with its own roles in step: with `max_lag=0` and all
lanes taken nothing is left of its asynchrony.

Fragments are fenced by optimisation barriers in both runs, so that the compiler cannot round differently across a
boundary that only one of them has. Training has no such fences.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from weft.algorithm import Algorithm
from weft.host import own_objects
from weft.layout.catalogue import parse
from weft.layout.layout import Layout
from weft.project.links import is_key
from weft.runtime import compilation_cache
from weft.runtime.driver import EnvSpec, Plan
from weft.runtime.local import LocalEngine


@dataclass(frozen=True)
class Difference:
    """One leaf of the state: how many of its entries differ, and by how much at most."""

    name: str
    entries: int
    differing: int
    largest: float


@dataclass(frozen=True)
class Comparison:
    """A layout's state beside another's, leaf by leaf."""

    layout: str
    against: str
    iterations: int
    leaves: tuple[Difference, ...]

    @property
    def identical(self) -> bool:
        return all(leaf.differing == 0 for leaf in self.leaves)

    def table(self) -> str:
        """`identical`, or the leaves that differ."""
        after = f"{self.layout} and {self.against} after {self.iterations} iterations"
        if self.identical:
            return f"identical: {after}, all {len(self.leaves)} leaves of the state, bit for bit"
        rows = [
            (leaf.name, f"{leaf.differing} of {leaf.entries}", f"{leaf.largest:.3g}")
            for leaf in self.leaves
            if leaf.differing
        ]
        rows = [("leaf", "entries that differ", "largest difference"), *rows]
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join([f"different: {after}", *lines])


def check(
    algo: Algorithm,
    env: EnvSpec,
    *,
    layout: Layout | str,
    against: Layout | str | None = None,
    iterations: int = 10,
    seed: int = 0,
    cache: str | Path | None = None,
) -> Comparison:
    """Run a layout and another (the fused one, or its own roles in step) from one seed and compare their states."""
    compilation_cache.enable(cache)
    layout = parse(layout) if isinstance(layout, str) else layout
    against = against or (layout.synchronous() if layout.lanes else "fused")
    against = parse(against) if isinstance(against, str) else against
    ends = [_end(Plan.of(algo, env, each), iterations, seed) for each in (against, layout)]
    names = ["state" + jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(ends[0])[0]]
    leaves = zip(names, *map(jax.tree.leaves, ends), strict=True)
    compared = tuple(compare_leaf(name, theirs, ours) for name, theirs, ours in leaves)
    return Comparison(layout.name, against.name, iterations, compared)


def _end(plan: Plan, iterations: int, seed: int) -> Any:
    parts = [*plan.warm_up(plan.algo.warm_up_iterations), (plan.project(), iterations)]
    with own_objects():
        state = plan.init(seed)
        for projection, times in parts:
            state = LocalEngine(projection, barriers=True).run(state, times)
        return state


def compare_leaf(name: str, one: jax.Array, other: jax.Array) -> Difference:
    """Compare by bytes, so that a NaN equals itself and 0.0 does not equal -0.0."""
    a, b = (np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf) for leaf in (one, other))
    bits = [np.ascontiguousarray(x).reshape(-1).view(np.uint8).reshape(x.size, x.itemsize) for x in (a, b)]
    differing = (bits[0] != bits[1]).any(axis=-1).reshape(a.shape)
    gap = np.abs(a.astype(np.float64) - b.astype(np.float64))[differing]
    return Difference(name, a.size, int(differing.sum()), float(gap.max()) if gap.size else 0.0)
