"""Checks that a layout computes the same result as another: runs both from one seed, and compares their states.

The default for the comparison is the fused layout. A layout whose consumer takes only some lanes is compared with its
own roles in synchronous form, because its iterations are not those of the fused layout.

What a leaf of the state is held to follows from the projection (see `weft.sharding`):

- `bits`: each entry equals that of one replica, bit for bit;
- `rounding`: it depends on a sum over rows that replicas compute in parts. The parts are added in another order, so it
  may differ by the rounding of that sum. Training amplifies such differences, so both layouts compute each iteration
  from the same state. With host environments, which cannot be reset to a state, only the first iteration is compared;
- `nothing`: the algorithm declares with `per_replica` that it depends on the number of replicas.

In both runs each fragment is enclosed in optimisation barriers. So the compiler cannot round differently across a
fragment boundary that exists in only one of them. Training has no such barriers.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from weft.algorithm import Algorithm
from weft.host import own_objects
from weft.layout.catalogue import parse
from weft.layout.layout import Layout
from weft.project.links import is_key
from weft.project.program import HostCall, walk
from weft.project.project import Projection
from weft.runtime import compilation_cache
from weft.runtime.driver import EnvSpec, Plan
from weft.runtime.local import LocalEngine
from weft.sharding.sharding import SUM

Standard = Literal["bits", "rounding", "nothing"]

SAFETY = 8.0
"""A difference may be this many times the error bound of a sum, which an optimiser processes further."""


@dataclass(frozen=True)
class Difference:
    """The number of entries of a leaf that differ, and the largest difference."""

    name: str
    entries: int
    differing: int
    largest: float
    standard: Standard = "bits"
    """What the leaf is held to."""
    allowed: float = 0.0
    """The largest difference that rounding may cause."""

    @property
    def is_right(self) -> bool:
        return self.standard == "nothing" or self.differing == 0 or self.largest <= self.allowed


@dataclass(frozen=True)
class Comparison:
    """The comparison of two layouts' states, leaf by leaf."""

    layout: str
    against: str
    iterations: int
    leaves: tuple[Difference, ...]

    @property
    def identical(self) -> bool:
        """Whether all leaves have the same bits."""
        return all(leaf.differing == 0 for leaf in self.leaves)

    @property
    def equal(self) -> bool:
        """Whether each leaf meets what it is held to."""
        return all(leaf.is_right for leaf in self.leaves)

    def table(self) -> str:
        """Returns the text `identical: ...` or `equal: ...`, or a table of the leaves that differ."""
        plural = "s" * (self.iterations != 1)
        subject = f"{self.layout} and {self.against} after {self.iterations} iteration{plural}"
        if self.identical:
            return f"identical: {subject}, all {len(self.leaves)} leaves of the state, bit for bit"
        if self.equal:
            return f"equal: {subject}, {len(self.leaves)} leaves of the state\n{self._standards()}"
        rows = [("leaf", "entries that differ", "largest difference", "allowed")]
        rows += [
            (leaf.name, f"{leaf.differing} of {leaf.entries}", f"{leaf.largest:.3g}", f"{leaf.allowed:.3g}")
            for leaf in self.leaves
            if not leaf.is_right
        ]
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join([f"different: {subject}", *lines])

    def _standards(self) -> str:
        """Which leaves are held to what, one line each."""
        held = {
            standard: [leaf for leaf in self.leaves if leaf.standard == standard]
            for standard in ("bits", "rounding", "nothing")
        }
        largest = max((leaf.largest / (leaf.allowed or 1.0) for leaf in held["rounding"]), default=0.0)
        lines = [
            ("bit for bit", held["bits"], ""),
            ("up to the rounding of sums", held["rounding"], f", at most {largest:.2g} of what is allowed"),
            ("not compared, each replica's own", held["nothing"], ""),
        ]
        return "\n".join(f"  {len(leaves)} {words}{more}: {_names(leaves)}" for words, leaves, more in lines if leaves)


def _names(leaves: Sequence[Difference]) -> str:
    """The parts of the state that leaves belong to, such as `state.net`."""
    return ", ".join(dict.fromkeys(_part(leaf.name) for leaf in leaves))


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
    """Runs `layout` and `against` from one seed, and compares their states.

    `against` defaults to the fused layout, or to the synchronous form of a layout whose consumer takes only some lanes.
    `cache` is the folder of compiled programs.
    """
    compilation_cache.enable(cache)
    layout = parse(layout) if isinstance(layout, str) else layout
    against = against or (layout.synchronous() if layout.whole_divisor > 1 else "fused")
    against = parse(against) if isinstance(against, str) else against
    # Both use the same kind of replay table.
    algo = algo.resolve(asynchronous=bool(layout.lanes or against.lanes))
    plans = [Plan.of(algo, env, each) for each in (against, layout)]
    projections = [plan.project() for plan in plans]
    held = _standards(projections)
    if set(held.values()) == {"bits"}:
        expected, found = (_final_state(plan, iterations, seed) for plan in plans)
        leaves = _compare(expected, found, held, allowed=0.0)
        return Comparison(layout.name, against.name, iterations, leaves)
    if any(
        isinstance(step, HostCall) for each in projections for p in each.programs.values() for step, _ in walk(p.steps)
    ):
        iterations = 1
    allowed = SAFETY * max(projection.terms for projection in projections) * float(np.finfo(np.float32).eps)
    leaves = _compare_each(plans, projections, iterations, seed, held, allowed)
    return Comparison(layout.name, against.name, iterations, leaves)


def _standards(projections: Sequence[Projection]) -> dict[str, Standard]:
    """What each leaf of the state is held to."""

    def standard(name: str) -> Standard:
        causes = frozenset().union(*(projection.causes.get(name, frozenset()) for projection in projections))
        return "nothing" if causes - SUM else "rounding" if causes else "bits"

    return {name: standard(name) for name in projections[0].trace.state_names}


def _compare_each(
    plans: Sequence[Plan],
    projections: Sequence[Projection],
    iterations: int,
    seed: int,
    held: dict[str, Standard],
    allowed: float,
) -> tuple[Difference, ...]:
    """The largest differences of any iteration. Both layouts compute each iteration from the same state."""
    engines = [LocalEngine(projection, barriers=True) for projection in projections]
    if iterations == 1:
        expected, found = (_final_state(plan, 1, seed) for plan in plans)
        return _compare(expected, found, held, allowed)
    state = _final_state(plans[0], 0, seed)
    worst: tuple[Difference, ...] = ()
    for _ in range(iterations):
        found = engines[1].run(jax.tree.map(jnp.copy, state), 1)
        state = engines[0].run(state, 1)
        leaves = _compare(state, found, held, allowed)
        worst = tuple(max(pair, key=_badness) for pair in zip(worst or leaves, leaves, strict=True))
    return worst


def _badness(leaf: Difference) -> tuple[bool, float]:
    return not leaf.is_right, leaf.largest


def _compare(expected: Any, found: Any, held: dict[str, Standard], allowed: float) -> tuple[Difference, ...]:
    names = ["state" + jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(expected)[0]]
    leaves = list(zip(names, jax.tree.leaves(expected), jax.tree.leaves(found), strict=True))
    scales: dict[str, float] = {}
    for name, leaf, _ in leaves:
        if jnp.issubdtype(leaf.dtype, jnp.floating) and leaf.size:
            part, largest = _part(name), float(np.nan_to_num(np.abs(np.asarray(leaf, np.float64))).max())
            scales[part] = max(largest, scales.get(part, 0.0))
    return tuple(
        compare_leaf(*leaf, standard=held[leaf[0]], allowed=allowed * scales.get(_part(leaf[0]), 0.0))
        for leaf in leaves
    )


def _part(name: str) -> str:
    """The part of the state that a leaf belongs to, such as `state.net`."""
    return ".".join(re.split(r"[.\[]", name)[:2]).rstrip("]'")


def compare_leaf(
    name: str, expected: jax.Array, found: jax.Array, *, standard: Standard = "bits", allowed: float = 0.0
) -> Difference:
    """Compares two arrays by their bytes: a NaN equals itself, and 0.0 does not equal -0.0.

    `allowed` is the difference that rounding may cause in a floating-point leaf that is held to `rounding`.
    """
    a, b = (np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf) for leaf in (expected, found))
    bits = [np.ascontiguousarray(x).reshape(-1).view(np.uint8).reshape(x.size, x.itemsize) for x in (a, b)]
    differing = (bits[0] != bits[1]).any(axis=-1).reshape(a.shape)
    gap = np.abs(a.astype(np.float64) - b.astype(np.float64))[differing]
    allowed = allowed if standard == "rounding" and a.dtype.kind == "f" else 0.0
    largest = float(gap.max()) if gap.size else 0.0
    return Difference(name, a.size, int(differing.sum()), largest, standard, allowed)


def _final_state(plan: Plan, iterations: int, seed: int) -> Any:
    """The state after the warm-up and then `iterations` iterations."""
    phases = [*plan.warm_up(plan.algo.warm_up_iterations), (plan.project(), iterations)]
    with own_objects():
        state = plan.init(seed)
        for projection, passes in phases:
            state = LocalEngine(projection, barriers=True).run(state, passes) if passes else state
        return state
