"""The layouts that have names: each is the architecture of a known system, as a few lines of data."""

import inspect
from collections.abc import Callable

from weft.errors import WeftError, unknown
from weft.layout.layout import Layout, Role


def fused(*, devices: int = 1) -> Layout:
    """One program for everything, over one or several devices (Anakin, WarpDrive)."""
    return Layout(Role("all", runs=("*",), devices=devices), name="fused")


def actors(*, actors: int = 1) -> Layout:
    """Actors that step environments and act; one learner (Acme, RLlib's synchronous sampling)."""
    return Layout(
        Role("actor", runs=("env", "act"), replicas=actors), Role("learner", runs=("learn", "*")), name="actors"
    )


def seed(*, envs: int = 1) -> Layout:
    """Environments apart; acting and learning in one place (SEED RL's central inference)."""
    return Layout(Role("env", runs=("env",), replicas=envs), Role("learner", runs=("act", "learn", "*")), name="seed")


def allreduce(*, workers: int = 1) -> Layout:
    """Workers that do everything on their share and average gradients (DD-PPO)."""
    return Layout(Role("worker", runs=("*",), replicas=workers), name="allreduce")


LAYOUTS: dict[str, Callable[..., Layout]] = {
    function.__name__: function for function in (fused, actors, seed, allreduce)
}


def parse(text: str) -> Layout:
    """The layout that `NAME` or `NAME:option=value,...` stands for.

    >>> print(parse("actors:actors=2"))
    actor x2 {env, act} | learner {learn, *}
    """
    name, _, options = text.partition(":")
    if name not in LAYOUTS:
        raise unknown("layout", name, LAYOUTS)
    known = inspect.signature(LAYOUTS[name]).parameters
    given = {}
    for option in filter(None, options.split(",")):
        key, equals, value = option.partition("=")
        if key not in known:
            raise unknown(f"option of layout {name}", key, known)
        if not equals or not value.strip().isdecimal():
            raise WeftError(f"layout {name}: {option!r} should be {key}=N with a whole number N")
        given[key] = int(value)
    return Layout(*LAYOUTS[name](**given).roles, name=text)
