"""Finds the sharding of every value, by reading the traces of the whole loop and of a share side by side.

The traces have the same equations at different sizes. For each pair of equations a rule derives the shardings of the
results from those of the operands (`rules`). Calls, loops and branches are in `calls`, the marks of weft in `marks`. A
value without a rule is unknown, so an operation that the rules do not cover is refused where its result matters.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.extend.core as jex
import numpy as np

from weft.graph.marks import mark_of
from weft.graph.rows import differing_axis
from weft.sharding.merges import Merges
from weft.sharding.pair import Pair, kinds_of
from weft.sharding.rules import RULES
from weft.sharding.sharding import (
    ANY_FOLD,
    CONSTANT,
    OWN,
    PENDING,
    REPLICATED,
    SUM,
    ZERO,
    Sharding,
    all_causes,
    join,
    sharded,
    unknown,
)

Shardings = list[Sharding]
Rule = Callable[["Propagation", Any, Any, Shardings], Shardings]
"""The shardings of the results of a pair of equations that hold other equations."""


@dataclass
class Propagation:
    """Propagates shardings through the program of a role with `replicas` instances."""

    replicas: int
    sizes: tuple[int, int]
    """The number of environments of the whole and of a share."""
    control: dict[str, Rule]
    """The rules of equations that hold other equations, by primitive."""
    marks: dict[str, Callable[..., Shardings]]
    """The rules of marked calls, by kind of mark."""
    merges_replicas: bool = True
    """Whether a merge covers all replicas. In lanes that do not wait for each other, it covers one lane."""
    merges: Merges = field(default_factory=Merges)
    known: dict[Any, tuple[Shardings, Merges]] = field(default_factory=dict)
    """The results of jaxprs that were read before, and the merges in them."""

    def equation(self, whole: Any, share: Any, operands: Shardings) -> Shardings:
        """The shardings of the results of an equation."""
        mark, name = mark_of(share), share.primitive.name
        if self.replicas == 1:
            return [blocking(operands) or REPLICATED.depending_on(all_causes(operands))] * len(share.outvars)
        if mark and mark.kind in self.marks:
            return self.marks[mark.kind](self, mark, whole, share, operands)
        if whole.primitive.name != name:
            return self.structures_differ(share, operands)
        if name in self.control:
            return self.control[name](self, whole, share, operands)
        return self.simple(name, whole, share, operands)

    def simple(self, name: str, whole: Any, share: Any, operands: Shardings) -> Shardings:
        """The shardings of the results of an equation that holds no others."""
        if blocked := blocking(operands):
            return [blocked] * len(share.outvars)
        return self.by_rule(Pair(name, whole, share, operands))

    def by_rule(self, pair: Pair) -> Shardings:
        """The shardings of the results of a pair of equations, by the rule of their operation."""
        name, causes, results = pair.name, all_causes(pair.shardings), len(pair.share.outvars)
        if pair.unchanged and kinds_of(pair.shardings) != {"zero"}:
            return [REPLICATED.depending_on(causes)] * results
        if name not in RULES:
            return [unknown(f"comes from `{name}`, of which weft has no rule")] * results
        if not pair.same_params:
            return [self.differs()] * results
        result = RULES[name](pair)
        shardings = result if isinstance(result, list) else [result] * results
        if shardings[0].kind == "partial" and "partial" not in kinds_of(pair.shardings):
            self.merges.terms = max(self.merges.terms, pair.terms)
        return [self.at_shapes(pair, i, sharding.depending_on(causes)) for i, sharding in enumerate(shardings)]

    def at_shapes(self, pair: Pair, index: int, sharding: Sharding) -> Sharding:
        """The sharding that a rule gives to a result, if the shapes of the result agree with it."""
        whole, part = pair.result(index)
        if sharding.kind in ("replicated", "partial"):
            return sharding if whole == part else self.differs()
        if sharding.kind == "sharded":
            expected = tuple(size * (self.replicas if axis == sharding.axis else 1) for axis, size in enumerate(part))
            return sharding if whole == expected else self.differs()
        return sharding

    def jaxpr(self, whole: Any, share: Any, operands: Shardings) -> Shardings:
        """The shardings of the results of a jaxpr, closed or open."""
        key = (id(whole), id(share), tuple(operands))
        if key not in self.known:
            self.known[key] = self.recorded(lambda: self._jaxpr(whole, share, operands))
        results, merges = self.known[key]
        self.merges.add(merges)
        return results

    def recorded(self, read: Callable[[], Shardings]) -> tuple[Shardings, Merges]:
        """The results of a function that reads equations, and the merges that it found."""
        outside, self.merges = self.merges, Merges()
        try:
            results = read()
            return results, self.merges
        finally:
            self.merges = outside

    def _jaxpr(self, whole: Any, share: Any, operands: Shardings) -> Shardings:
        consts = [self.constant(a, b) for a, b in zip(_consts(whole), _consts(share), strict=False)]
        whole, share = (each.jaxpr if isinstance(each, jex.ClosedJaxpr) else each for each in (whole, share))
        if len(whole.eqns) != len(share.eqns) or len(whole.constvars) != len(share.constvars):
            return self.structures_differ(share, operands)
        env = dict(zip(share.invars, operands, strict=True)) | dict(zip(share.constvars, consts, strict=True))
        counterparts = dict(zip(whole.invars, share.invars, strict=True))
        counterparts |= dict(zip(whole.constvars, share.constvars, strict=True))

        def read(a: Any, b: Any) -> Sharding:
            if isinstance(a, jex.Literal) and isinstance(b, jex.Literal):
                return self.constant(a.val, b.val)
            aligned = not isinstance(a, jex.Literal) and not isinstance(b, jex.Literal) and counterparts.get(a) is b
            return env[b] if aligned else self.differs()

        for a, b in zip(whole.eqns, share.eqns, strict=True):
            inputs = [read(*atoms) for atoms in zip(a.invars, b.invars, strict=False)]
            same = len(a.invars) == len(b.invars) and len(a.outvars) == len(b.outvars)
            results = self.equation(a, b, inputs) if same else self.structures_differ(b, inputs)
            counterparts |= dict(zip(a.outvars, b.outvars, strict=False))
            env |= dict(zip(b.outvars, results, strict=True))
        return [read(a, b) for a, b in zip(whole.outvars, share.outvars, strict=True)]

    def structures_differ(self, share: Any, operands: Shardings, how: Sharding | None = None) -> Shardings:
        """The shardings of what is computed in another way on a share. Only a replica's own values may be."""
        own = any(sharding.kind == "own" for sharding in operands)
        return [blocking(operands) if own else how or self.differs()] * len(share.outvars)  # pyright: ignore

    def constant(self, whole: Any, share: Any) -> Sharding:
        """The sharding of a number or an array in the program, such as `env.num_envs`."""
        try:
            a, b = np.asarray(whole), np.asarray(share)
        except TypeError:
            return REPLICATED if whole is share else self.differs()
        if not (np.issubdtype(a.dtype, np.number) or a.dtype == bool):
            return REPLICATED if np.array_equal(a, b) else self.differs()
        if not a.any() and not b.any():
            return ZERO
        if a.shape != b.shape:
            return self.constant_rows(a, b)
        if np.array_equal(a, b, equal_nan=np.issubdtype(a.dtype, np.inexact)):
            return REPLICATED
        for power in (-1, 1, -2, 2):
            if np.array_equal(a * float(self.replicas) ** power, b):
                return Sharding("replicated", power=power, depends_on=self.rounding(a.dtype))
        reason = f"depends on a number that is {whole} with all environments and {share} on a replica"
        return unknown(reason).depending_on(CONSTANT)

    def constant_rows(self, whole: np.ndarray, share: np.ndarray) -> Sharding:
        axis = differing_axis(whole.shape, share.shape)
        if axis is None or not all(np.array_equal(rows, share) for rows in np.split(whole, self.replicas, axis)):
            return unknown("is an array of the program with a row for every environment: compute it with jax.numpy")
        return sharded(axis, ANY_FOLD if (share == share.take([0], axis)).all() else 1)

    def rounding(self, dtype: Any) -> frozenset[str]:
        """Why numbers that are scaled by the number of replicas and back may be rounded differently."""
        exact = np.issubdtype(dtype, np.integer) or self.replicas & (self.replicas - 1) == 0
        return frozenset() if exact else SUM

    def differs(self) -> Sharding:
        whole, share = self.sizes
        return unknown(
            f"is computed by other operations with {whole} environments than with {share}, the share of one replica: "
            "make the structure independent of env.num_envs"
        )

    def loop(self, step: Callable[[Shardings], Shardings], operands: Shardings, consts: int, carried: int) -> Shardings:
        """The shardings of a loop's results: those of the carry at the start of every step and of the last."""
        current = list(operands)
        while True:
            results, merges = self.recorded(lambda: step(current))
            before = current[consts : consts + carried]
            after = [join(old, new) for old, new in zip(before, results[:carried], strict=True)]
            if after == before:
                self.merges.add(merges)
                return after + results[carried:]
            current[consts : consts + carried] = after


def blocking(operands: Sequence[Sharding]) -> Sharding | None:
    """The sharding of anything computed from operands of which one is pending, unknown or a replica's own."""
    if any(sharding.kind == "pending" for sharding in operands):
        return PENDING
    own = any(sharding.kind == "own" for sharding in operands)
    for sharding in operands:
        # A number such as env.num_envs may be used with a replica's own values.
        if sharding.is_unknown and not (own and sharding.depends_on >= CONSTANT):
            return sharding
    return Sharding("own", depends_on=all_causes(operands) - CONSTANT | OWN) if own else None


def _consts(jaxpr: Any) -> Sequence[Any]:
    return jaxpr.consts if isinstance(jaxpr, jex.ClosedJaxpr) else ()
