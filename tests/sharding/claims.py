"""Checks what the propagation of shardings claims about a function, by evaluating it whole and in shares."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from weft.fragments import tracing_shares
from weft.graph.rows import number_rows
from weft.project.links import is_key
from weft.runtime.interpreter import ReplicaContext, eval_jaxpr
from weft.sharding.calls import CONTROL
from weft.sharding.marks import MARKS
from weft.sharding.propagate import Propagation
from weft.sharding.sharding import REPLICATED, Sharding, describe, sharded

ROWS, REPLICAS, STEPS = 12, 3, 2
"""The rows of the whole, the replicas that divide them, and the steps that are folded into a folded axis."""
FOLDED = sharded(0, STEPS)


def shares(sharding: Sharding, whole: Any) -> list[Any]:
    """The parts of an array that is replicated or sharded."""
    if sharding.kind == "replicated":
        return [whole] * REPLICAS
    axis, folded = sharding.axis, sharding.folded
    unfolded = whole.reshape(*whole.shape[:axis], folded, -1, *whole.shape[axis + 1 :])
    parts = np.split(unfolded, REPLICAS, axis=axis + 1)
    return [part.reshape(*whole.shape[:axis], -1, *whole.shape[axis + 1 :]) for part in parts]


def trace(function: Callable[..., Any], arguments: Sequence[Any], shares: int = 1) -> Any:
    """The jaxpr of a function; None if it does not accept arguments of these shapes."""
    try:
        with tracing_shares(shares):
            return jax.make_jaxpr(lambda *args: jax.tree.leaves(function(*args)))(*arguments)
    except (TypeError, ValueError, IndexError, ZeroDivisionError, NotImplementedError):
        return None


def claims(function: Callable[..., Any], arguments: Sequence[Any], given: Sequence[Sharding]) -> list[Sharding]:
    """The shardings of a function's results. Fails if an evaluation contradicts one of them."""
    divided = [shares(sharding, whole) for sharding, whole in zip(given, arguments, strict=True)]
    traces = trace(function, arguments), trace(function, [parts[0] for parts in divided], REPLICAS)
    if traces[0] is None or traces[1] is None:
        return []
    whole, share = traces[0], number_rows(traces[0], traces[1])
    work = Propagation(REPLICAS, (ROWS, ROWS // REPLICAS), CONTROL, MARKS)
    found = work.jaxpr(whole, share, list(given))
    expected = eval_jaxpr(whole, arguments, ReplicaContext())
    parts = [
        eval_jaxpr(share, [each[index] for each in divided], ReplicaContext(index=index, count=REPLICAS))
        for index in range(REPLICAS)
    ]
    for claim, value, *rest in zip(found, expected, *parts, strict=True):
        check_claim(claim, as_numbers(value), [as_numbers(part) for part in rest])
    return found


def as_numbers(array: Any) -> np.ndarray:
    return np.asarray(jax.random.key_data(array) if is_key(array) else array)


def check_claim(claim: Sharding, whole: np.ndarray, parts: list[np.ndarray]) -> None:
    """Fails unless the parts make up the whole as the claim says."""
    scale = float(REPLICAS) ** claim.power
    text = f"claimed to be {describe(claim)}, but\nwhole\n{whole}\nparts\n{parts}"
    if claim.kind == "zero":
        assert not np.nan_to_num(whole).any() and not any(np.nan_to_num(part).any() for part in parts), text
    elif claim.kind == "replicated":
        assert all(_equal(part, whole, scale) for part in parts), text
    elif claim.kind == "partial":
        assert _equal(np.sum(parts, axis=0), whole, scale), text
    elif claim.kind == "sharded":
        folds = [claim.folded] if claim.folded else [1, *range(2, parts[0].shape[claim.axis] + 1)]
        for folded in [fold for fold in folds if parts[0].shape[claim.axis] % fold == 0]:
            rows = shares(sharded(claim.axis, folded), whole)
            assert all(_equal(part, each, scale) for part, each in zip(parts, rows, strict=True)), text


def _equal(part: np.ndarray, whole: np.ndarray, scale: float) -> bool:
    if part.dtype.kind in "biu" and scale == 1:
        return np.array_equal(part, whole)
    return bool(np.allclose(part.astype(np.float64) / scale, whole, rtol=1e-4, atol=1e-4, equal_nan=True))


__all__ = ["FOLDED", "REPLICAS", "REPLICATED", "ROWS", "STEPS", "claims", "sharded"]
