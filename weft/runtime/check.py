"""Checks that a layout computes the same result as another: runs both from one seed, and compares every bit.

The default for the comparison is the fused layout. A layout with lanes is compared with its own roles in synchronous
form, because with `max_lag=0` and all lanes consumed nothing in it is asynchronous.

In both runs each fragment is enclosed in optimisation barriers. So the compiler cannot round differently across a
fragment boundary that exists in only one of them. Training has no such barriers.
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
    """The number of entries of a leaf that differ, and the largest difference."""

    name: str
    entries: int
    differing: int
    largest: float


@dataclass(frozen=True)
class Comparison:
    """The comparison of two layouts' final states, leaf by leaf."""

    layout: str
    against: str
    iterations: int
    leaves: tuple[Difference, ...]

    @property
    def identical(self) -> bool:
        return all(leaf.differing == 0 for leaf in self.leaves)

    def table(self) -> str:
        """Returns the text `identical: ...`, or a table of the leaves that differ."""
        subject = f"{self.layout} and {self.against} after {self.iterations} iterations"
        if self.identical:
            return f"identical: {subject}, all {len(self.leaves)} leaves of the state, bit for bit"
        rows = [("leaf", "entries that differ", "largest difference")]
        rows += [
            (leaf.name, f"{leaf.differing} of {leaf.entries}", f"{leaf.largest:.3g}")
            for leaf in self.leaves
            if leaf.differing
        ]
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join([f"different: {subject}", *lines])


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
    """Runs `layout` and `against` from one seed, and compares their final states.

    `against` defaults to the fused layout, or to the synchronous form of a layout with lanes. `cache` is the folder of
    compiled programs.
    """
    compilation_cache.enable(cache)
    layout = parse(layout) if isinstance(layout, str) else layout
    against = against or (layout.synchronous() if layout.lanes else "fused")
    against = parse(against) if isinstance(against, str) else against
    expected, found = (_final_state(Plan.of(algo, env, each), iterations, seed) for each in (against, layout))
    names = ["state" + jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(expected)[0]]
    leaves = zip(names, jax.tree.leaves(expected), jax.tree.leaves(found), strict=True)
    differences = tuple(compare_leaf(*leaf) for leaf in leaves)
    return Comparison(layout.name, against.name, iterations, differences)


def compare_leaf(name: str, expected: jax.Array, found: jax.Array) -> Difference:
    """Compares two arrays by their bytes: a NaN equals itself, and 0.0 does not equal -0.0."""
    a, b = (np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf) for leaf in (expected, found))
    bits = [np.ascontiguousarray(x).reshape(-1).view(np.uint8).reshape(x.size, x.itemsize) for x in (a, b)]
    differing = (bits[0] != bits[1]).any(axis=-1).reshape(a.shape)
    gap = np.abs(a.astype(np.float64) - b.astype(np.float64))[differing]
    return Difference(name, a.size, int(differing.sum()), float(gap.max()) if gap.size else 0.0)


def _final_state(plan: Plan, iterations: int, seed: int) -> Any:
    phases = [*plan.warm_up(plan.algo.warm_up_iterations), (plan.project(), iterations)]
    with own_objects():
        state = plan.init(seed)
        for projection, passes in phases:
            state = LocalEngine(projection, barriers=True).run(state, passes)
        return state
