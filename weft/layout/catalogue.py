"""The named layouts. Each is the architecture of a known system, as a few lines of data."""

import inspect
from collections.abc import Callable
from typing import Any

from weft.errors import WeftError, unknown
from weft.layout.layout import Layout, Role
from weft.modules import import_attribute


def fused(*, devices: int = 1) -> Layout:
    """One program for the whole loop, on one or several devices (Anakin, WarpDrive)."""
    return Layout(Role("all", runs=("*",), devices=devices), name="fused")


def actors(*, actors: int = 1) -> Layout:
    """Actors that step environments and act, and one learner (Acme, RLlib's synchronous sampling)."""
    return Layout(
        Role("actor", runs=("env", "act"), replicas=actors), Role("learner", runs=("learn", "*")), name="actors"
    )


def impala(*, actors: int = 2, take: int = 1, max_lag: int | None = None, learners: int = 1) -> Layout:
    """Asynchronous actors, and a learner that takes the rollouts that are ready (IMPALA)."""
    return Layout(
        Role("actor", runs=("env", "act"), replicas=actors),
        Role("learner", runs=("learn", "*"), replicas=learners, take=take),
        registers=[("learner", "actor")],
        max_lag=max_lag,
        name="impala",
    )


def sebulba(
    *, actors: int = 2, take: int = 1, max_lag: int = 1, actor_devices: str = "0", learner_devices: str = "0"
) -> Layout:
    """Asynchronous actors on some devices, and a learner over the others (Podracer's Sebulba)."""
    learning = tuple(learner_devices.split("+"))
    return Layout(
        Role("actor", runs=("env", "act"), replicas=actors, on=tuple(actor_devices.split("+"))),
        Role("learner", runs=("learn", "*"), take=take, devices=len(learning), on=learning),
        registers=[("learner", "actor")],
        max_lag=max_lag,
        name="sebulba",
    )


def seed(
    *, envs: int = 1, take: int | None = None, max_lag: int | None = None, batch: int | None = None, wait_ms: float = 0
) -> Layout:
    """Environment workers and central inference (SEED RL); with `take`, the workers are asynchronous."""
    environments = Role("env", runs=("env",), replicas=envs)
    if take is None:
        if max_lag is not None or batch is not None or wait_ms:
            raise WeftError(
                "seed: max_lag, batch and wait_ms are for its asynchronous form: give take, too, as in take=1"
            )
        return Layout(environments, Role("learner", runs=("act", "learn", "*")), name="seed")
    return Layout(
        environments,
        Role("inference", runs=("act",), replicas=envs, batch=envs if batch is None else batch, wait=wait_ms / 1000),
        Role("learner", runs=("learn", "*"), take=take),
        registers=[("learner", "inference")],
        max_lag=max_lag,
        name="seed",
    )


def allreduce(*, workers: int = 1) -> Layout:
    """Workers that each run the whole loop on a share of the environments and average gradients (DD-PPO)."""
    return Layout(Role("worker", runs=("*",), replicas=workers), name="allreduce")


def a3c(*, workers: int = 2, take: int = 1, max_lag: int | None = None) -> Layout:
    """Workers that send gradients, and a server that applies them as they arrive (A3C, a parameter server)."""
    return Layout(
        Role("worker", runs=("env", "act", "gradient", "*"), replicas=workers),
        Role("server", runs=("update",), take=take),
        registers=[("server", "worker")],
        max_lag=max_lag,
        name="a3c",
    )


def apex(*, actors: int = 2, replays: int = 1) -> Layout:
    """Actors that fill a replay table, and a learner that samples from it asynchronously (Ape-X, D4PG, R2D2)."""
    return Layout(
        Role("actor", runs=("env", "act"), replicas=actors),
        Role("replay", runs=("replay",), replicas=replays, take=1, apart=True),
        Role("learner", runs=("learn", "*"), free=True),
        registers=[("learner", "actor")],
        name="apex",
    )


LAYOUTS: dict[str, Callable[..., Layout]] = {
    function.__name__: function for function in (fused, actors, impala, sebulba, seed, allreduce, a3c, apex)
}


def parse(text: str) -> Layout:
    """The layout that `NAME`, `NAME:option=value,...` or `module:attribute` names.

    >>> print(parse("actors:actors=2"))
    actor x2 {env, act} | learner {learn, *}
    """
    name, _, options = text.partition(":")
    if name not in LAYOUTS and options and "=" not in options:
        return _own_layout(text)
    if name not in LAYOUTS:
        raise unknown("layout", name, LAYOUTS)
    known = inspect.signature(LAYOUTS[name]).parameters
    values = {}
    for option in filter(None, options.split(",")):
        key, equals, value = option.partition("=")
        if key not in known:
            raise unknown(f"option of layout {name}", key, known)
        values[key] = _read(known[key].annotation, value.strip()) if equals else None
        if values[key] is None:
            raise WeftError(f"layout {name}: {option!r} is not valid: write {key}={_expected(known[key].annotation)}")
    layout = LAYOUTS[name](**values)
    return Layout(*layout.roles, name=text, registers=layout.registers, max_lag=layout.max_lag)


def _own_layout(text: str) -> Layout:
    """The layout, or the function without arguments that returns one, named `module:attribute`."""
    found = import_attribute(text, "your own layout")
    layout = found() if callable(found) and not inspect.signature(found).parameters else found
    if not isinstance(layout, Layout):
        raise WeftError(
            f"{text} is {type(layout).__name__}: name a weft.Layout, or a function without arguments that returns one"
        )
    return Layout(*layout.roles, name=text, registers=layout.registers, max_lag=layout.max_lag)


def _read(kind: Any, text: str) -> Any:
    """The value of an option from its text; None if the text does not have the option's type."""
    if kind is str:
        return text or None
    if kind is float:
        return float(text) if text.replace(".", "", 1).isdecimal() else None
    return int(text) if text.isdecimal() else None


def _expected(kind: Any) -> str:
    return {str: "NAMES, joined by +", float: "X with a number X"}.get(kind, "N with a whole number N")
