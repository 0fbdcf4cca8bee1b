"""Resizing: the jaxpr of a share, from jaxprs of shares with twice and four times as many rows.

JAX writes operations on an axis with one entry differently: it broadcasts them silently, and differentiates them in
another order. A share with one environment, or with one group of environments, would therefore have other equations
than the whole loop, and the two could not be compared. So the loop is traced with twice and four times the rows. Every
size that differs between these two traces is proportional to the rows, and is halved. Nothing else changes.

Host functions belong to an environment of a certain size, so they are taken from the trace of the share itself.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import jax.extend.core as jex
import numpy as np

from weft.graph.marks import jaxpr_params, mark_of


class NotProportional(Exception):
    """A size or a number that is not proportional to the number of rows."""


def same_operations(one: Any, other: Any) -> bool:
    """Whether two jaxprs, and the jaxprs in them, have the same operations in the same order."""
    if len(one.eqns) != len(other.eqns):
        return False
    return all(
        a.primitive is b.primitive and all(same_operations(*pair) for pair in zip(*map(_inner, (a, b)), strict=False))
        for a, b in zip(one.eqns, other.eqns, strict=True)
    )


def _inner(eqn: Any) -> list[Any]:
    """The jaxprs in an equation."""
    parts = [each for _, part in jaxpr_params(eqn.params) for each in (part if isinstance(part, tuple) else (part,))]
    return [getattr(part, "jaxpr", part) for part in parts]


def resized(two: Any, four: Any, one: Any) -> Any:
    """The closed jaxpr `two` of a loop with twice the rows, at the rows of `one`, which was traced with these.

    It is `one` itself if the loop cannot be resized. `four` was traced with four times the rows.
    """
    try:
        closed = _Resize(_host_calls(one.jaxpr)).closed(two, four)
    except (NotProportional, ValueError):  # zip raises ValueError where the traces have different lengths
        return one
    same = [(a.shape, a.dtype) for a in (*closed.in_avals, *closed.out_avals)] == [
        (a.shape, a.dtype) for a in (*one.in_avals, *one.out_avals)
    ]
    return closed if same else one


def _host_calls(jaxpr: Any) -> Iterator[Any]:
    """The host calls of a jaxpr and of all jaxprs in it, in order."""
    for eqn in jaxpr.eqns:
        mark = mark_of(eqn)
        if mark and mark.kind == "host":
            yield eqn
            continue
        for part in _inner(eqn):
            yield from _host_calls(part)


@dataclass
class _Resize:
    host_calls: Iterator[Any]
    """The host calls of the share's own trace that were not used yet."""
    done: dict[tuple[int, int], Any] = field(default_factory=dict)
    """Jaxprs that were resized before: calls may share them."""

    def closed(self, two: Any, four: Any) -> Any:
        consts = [self.constant(a, b) for a, b in zip(two.consts, four.consts, strict=True)]
        return jex.ClosedJaxpr(self.jaxpr(two.jaxpr, four.jaxpr), consts)

    def jaxpr(self, two: Any, four: Any) -> Any:
        key = (id(two), id(four))
        if key not in self.done:
            self.done[key] = self.new_jaxpr(two, four)
        return self.done[key]

    def new_jaxpr(self, two: Any, four: Any) -> Any:
        env: dict[Any, Any] = {}

        def bind(a: Any, b: Any) -> Any:
            env[a] = type(a)(self.aval(a.aval, b.aval))
            return env[a]

        def read(a: Any, b: Any) -> Any:
            if isinstance(a, jex.Literal) != isinstance(b, jex.Literal):
                raise NotProportional
            if isinstance(a, jex.Literal):
                return jex.Literal(self.constant(a.val, b.val), self.aval(a.aval, b.aval))
            return env[a]

        invars = [bind(*pair) for pair in zip(two.invars, four.invars, strict=True)]
        constvars = [bind(*pair) for pair in zip(two.constvars, four.constvars, strict=True)]
        eqns = []
        for a, b in zip(two.eqns, four.eqns, strict=True):
            if a.primitive is not b.primitive:
                raise NotProportional
            inputs = [read(*pair) for pair in zip(a.invars, b.invars, strict=True)]
            outputs = [bind(*pair) for pair in zip(a.outvars, b.outvars, strict=True)]
            eqns.append(a.replace(invars=inputs, outvars=outputs, params=self.params(a, b)))
        outvars = [read(*pair) for pair in zip(two.outvars, four.outvars, strict=True)]
        return two.replace(invars=invars, constvars=constvars, eqns=eqns, outvars=outvars)

    def params(self, two: Any, four: Any) -> dict[str, Any]:
        mark = mark_of(two)
        if mark and mark.kind == "host":
            return next(self.host_calls).params
        return {name: self.param(value, four.params[name]) for name, value in two.params.items()}

    def param(self, two: Any, four: Any) -> Any:
        if isinstance(two, jex.ClosedJaxpr):
            return self.closed(two, four)
        if isinstance(two, jex.Jaxpr):
            return self.jaxpr(two, four)
        if two is four or callable(two):
            return two
        if type(two) in (tuple, list):
            return type(two)(self.param(a, b) for a, b in zip(two, four, strict=True))
        if isinstance(two, int | np.integer) and not isinstance(two, bool):
            return two if two == four else self.size(int(two), int(four))
        if repr(two) != repr(four):
            raise NotProportional
        return two

    def size(self, two: int, four: int) -> int:
        if two == four:
            return two
        if four != 2 * two or two % 2:
            raise NotProportional
        return two // 2

    def aval(self, two: Any, four: Any) -> Any:
        if not hasattr(two, "shape"):
            return two
        return two.update(shape=tuple(self.size(a, b) for a, b in zip(two.shape, four.shape, strict=True)))

    def constant(self, two: Any, four: Any) -> Any:
        """A number or an array of the program. A number may be proportional to the rows or to a power of them."""
        if two is four:
            return two
        a, b = np.asarray(two), np.asarray(four)
        if a.shape != b.shape:
            return self.constant_rows(a, b)
        if np.array_equal(a, b, equal_nan=np.issubdtype(a.dtype, np.inexact)):
            return two
        for power in (1, -1, 2, -2):
            scaled = (a * 0.5**power).astype(a.dtype)
            if np.array_equal(a * 2.0**power, b) and np.array_equal(scaled * 2.0**power, a):
                return scaled if isinstance(two, np.ndarray) else type(two)(scaled)
        raise NotProportional

    def constant_rows(self, two: np.ndarray, four: np.ndarray) -> np.ndarray:
        shape = tuple(self.size(a, b) for a, b in zip(two.shape, four.shape, strict=True))
        one = two[tuple(slice(size) for size in shape)]
        repeats = [
            (np.tile(one, [a // b for a, b in zip(full.shape, shape, strict=True)]), full) for full in (two, four)
        ]
        if not all(np.array_equal(*pair) for pair in repeats):
            raise NotProportional
        return one
