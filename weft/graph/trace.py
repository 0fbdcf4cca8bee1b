"""Trace: from an algorithm to the jaxpr of its training loop, with names for the inputs and outputs.

The trace is a loop: `length` iterations as one `lax.scan` over the state. A role that runs all fragments can therefore
run the loop as one XLA program, and any other role runs its part of the same loop.
"""

import functools
from dataclasses import MISSING, dataclass, fields
from typing import Any

import jax
import jax.extend.core as jex
from jax import lax
from jax.interpreters import partial_eval as pe
from jax.tree_util import keystr, tree_flatten_with_path

from weft.algorithm import Algorithm, Phase
from weft.envs.timestep import Env
from weft.errors import WeftError
from weft.graph.marks import count_calls, marks_in
from weft.metrics import Mean


@dataclass(frozen=True, eq=False)
class Trace:
    """A traced loop. Its outputs are the leaves of the state, then the metrics, stacked over iterations."""

    jaxpr: Any
    all_jaxpr: Any
    """The jaxpr with the operations whose results are unused."""
    fragments: frozenset[str]
    """The names of all fragments of `step`, including those whose results are unused."""
    state_names: tuple[str, ...]
    state_avals: tuple[Any, ...]
    metric_names: tuple[str, ...]
    state_tree: Any
    metric_tree: Any
    batch: int
    """The number of environments."""
    length: int
    """The number of iterations."""

    @property
    def groups(self) -> tuple[str, ...]:
        """For every output, the name of its group. The total and the count of a metric are one group."""
        return (*self.state_names, *(name.rpartition(".")[0] for name in self.metric_names))

    @property
    def steps_per_iteration(self) -> int:
        """The number of environment steps in one iteration, over all environments of this trace."""
        return self.batch * count_calls(self.all_jaxpr.jaxpr, "env", self.batch) // self.length


def trace(algo: Algorithm, env: Env, length: int = 1, phase: Phase = "step") -> Trace:
    """Trace `length` iterations of an algorithm on an environment, of its warm-up or of its main loop."""
    state = jax.eval_shape(functools.partial(algo.init, env), jax.eval_shape(lambda: jax.random.key(0)))
    step = functools.partial(getattr(algo, phase), env)
    metrics: dict[str, Any] = {}

    def iterate(carry: Any, _: Any) -> Any:
        result = step(carry)
        _check_result(result, state, phase)
        metrics.update(result[1])
        return result

    jaxpr = jax.make_jaxpr(lambda s: lax.scan(iterate, s, length=length))(state)
    state_paths, state_tree = tree_flatten_with_path(state)
    metric_paths, metric_tree = tree_flatten_with_path(metrics)
    return Trace(
        jaxpr=_without_unused(jaxpr),
        all_jaxpr=jaxpr,
        fragments=_fragments(jaxpr) if phase == "step" else trace(algo, env).fragments,
        state_names=tuple("state" + keystr(path) for path, _ in state_paths),
        state_avals=tuple(leaf for _, leaf in state_paths),
        metric_names=tuple("metrics" + keystr(path) for path, _ in metric_paths),
        state_tree=state_tree,
        metric_tree=metric_tree,
        batch=env.num_envs,
        length=length,
    )


def record_reads(algo: Algorithm) -> tuple[Algorithm, set[str]]:
    """A copy of an algorithm, and the set of the settings that were read from the copy."""
    reads: set[str] = set()
    names = {field.name for field in fields(algo)}
    kind = type(algo)

    def read(self: Any, name: str) -> Any:
        if name in names:
            reads.add(name)
        return kind.__getattribute__(self, name)

    # The copy is equal only to itself. Otherwise JAX would reuse the trace of a fragment of an equal algorithm, and no
    # setting would be read.
    copy_type = type(
        kind.__name__, (kind,), {"__getattribute__": read, "__eq__": object.__eq__, "__hash__": object.__hash__}
    )
    copy = object.__new__(copy_type)
    for name in names:
        object.__setattr__(copy, name, getattr(algo, name))
    return copy, reads


def refuse_unread_settings(algo: Algorithm, reads: set[str]) -> None:
    """Reject an algorithm with a setting that differs from its default and was never read."""
    for field in fields(algo):
        default = field.default if field.default_factory is MISSING else field.default_factory()
        if field.name not in reads and field.name != "num_envs" and getattr(algo, field.name) != default:
            raise WeftError(
                f"{type(algo).__name__} never read its setting {field.name}={getattr(algo, field.name)!r}: "
                "it has no effect together with the other settings; leave it out"
            )


def _fragments(closed: Any) -> frozenset[str]:
    return frozenset(mark.name for eqn in closed.eqns for mark in marks_in(eqn) if mark.kind == "fragment")


def _check_result(result: Any, state: Any, name: str) -> None:
    """Reject an iteration that changes the structure of the state, or the shape or dtype of a leaf."""
    if not isinstance(result, tuple) or len(result) != 2:
        raise WeftError(f"{name} must return (state, metrics), but it returned {type(result).__name__}")
    if not isinstance(result[1], dict) or not all(isinstance(metric, Mean) for metric in result[1].values()):
        raise WeftError(f"{name} must return metrics as a dictionary of weft.Mean, but it returned {result[1]!r}")
    before, after = tree_flatten_with_path(state), tree_flatten_with_path(result[0])
    if before[1] != after[1]:
        raise WeftError(
            f"{name} must return a state with the structure of init's:\n  {before[1]}\nbut it returned\n  {after[1]}"
        )
    for (path, old), (_, new) in zip(before[0], after[0], strict=True):
        if (old.shape, old.dtype) != (new.shape, new.dtype):
            raise WeftError(
                f"state{keystr(path)} is {old.dtype}{list(old.shape)} before {name} and {new.dtype}{list(new.shape)} "
                "after: an iteration must keep every leaf's shape and dtype"
            )


def _without_unused(closed: Any) -> Any:
    """The jaxpr without unused operands and results: the role that acts is not sent the critic."""
    used = [True] * len(closed.jaxpr.outvars)
    jaxpr, _ = pe.dce_jaxpr(closed.jaxpr, used, instantiate=True)
    return jex.ClosedJaxpr(jaxpr, closed.consts)
