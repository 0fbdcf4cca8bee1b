"""A layout: which role runs which fragments, how many there are of each role, and what need not wait.

>>> layout = Layout(Role("actor", runs=("env", "act"), replicas=4), Role("learner", runs=("learn",)))
>>> layout.placement
{'env': 'actor', 'act': 'actor', 'learn': 'learner'}
>>> print(layout)
actor x4 {env, act} | learner {learn}

Two things make a layout asynchronous. A role may `take` fewer than all of the replicas that serve it into one
iteration: those replicas are then *lanes*, each at its own pace; a role that is neither a lane nor takes from them is
`free`. And a state edge may be a register: its reader goes on
with the newest value there is, instead of waiting for the next one.

>>> impala = Layout(
...     Role("actor", runs=("env", "act"), replicas=4), Role("learner", runs=("learn",), take=1),
...     registers=[("learner", "actor")], max_lag=2)
>>> print(impala)
actor x4 {env, act} | learner taking 1 of 4 {learn} | register learner -> actor, lag at most 2
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from weft.errors import WeftError


@dataclass(frozen=True)
class Role:
    """A party of the computation: the fragments it runs, and its copies.

    `replicas` are independent copies, each with its share of the environments. `devices` makes each copy one program
    over that many devices of its process, again with a share for each. The name `*` stands for every fragment that the
    layout does not name.
    """

    name: str
    runs: tuple[str, ...]
    replicas: int = 1
    devices: int = 1
    take: int | None = None
    """How many of the lanes that serve a replica make one of its iterations; None waits for all, in step with them."""
    on: tuple[str, ...] = ()
    """The devices that the replicas are spread over, as in `("gpu:0", "gpu:1")`; none are the default ones."""
    batch: int = 1
    """Up to how many replicas' calls of one compiled run, in an inner loop, are made as one."""
    wait: float = 0.0
    """Seconds that such a call waits for others to join it, unless there are `batch` of them."""
    apart: bool = False
    """Whether its host code may be called from several threads at once: what only tokens tie together then goes on
    independently, as strands of their own."""
    free: bool = False
    """Whether it goes on by itself where others are lanes or take from them: they share nothing but registers."""
    of: int = 1
    """The lanes that serve a replica that takes: filled in by the layout."""

    @property
    def in_lane(self) -> bool:
        """Whether its replicas are lanes, or parts of some, where a role takes."""
        return self.take is None and not self.free

    @property
    def copies(self) -> int:
        """How many of this role there are, on whatever devices."""
        return self.replicas * self.devices

    @property
    def shares(self) -> int:
        """Into how many parts the environments are divided for this role: one is what a copy has in an iteration."""
        return self.copies if self.take is None else self.of * self.copies // self.take

    def __str__(self) -> str:
        copies = f" x{self.replicas}" if self.replicas > 1 else ""
        devices = f" on {self.devices} devices" if self.devices > 1 else ""
        devices = f" on {', '.join(self.on)}" if self.on else devices
        taking = "" if self.take is None else f" taking {self.take} of {self.of}"
        taking = " free" if self.free else taking
        return f"{self.name}{copies}{devices}{taking} {{{', '.join(self.runs)}}}"


@dataclass(frozen=True)
class Layout:
    """How one training loop is cut into roles."""

    roles: tuple[Role, ...]
    name: str = "custom"
    registers: tuple[tuple[str, str], ...] = ()
    """Pairs of roles: what the first makes of the state, the second reads without waiting."""
    max_lag: int | None = None
    """How many of its iterations a role that takes may be ahead of what it takes; None sets no bound."""

    def __init__(
        self,
        *roles: Role,
        name: str = "custom",
        registers: Iterable[tuple[str, str]] = (),
        max_lag: int | None = None,
    ):
        _validate(roles)
        object.__setattr__(self, "roles", _with_lanes(roles))
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "registers", tuple(registers))
        object.__setattr__(self, "max_lag", max_lag)
        _validate_asynchrony(self)

    @cached_property
    def placement(self) -> dict[str, str]:
        """The role that runs each named fragment."""
        return {fragment: role.name for role in self.roles for fragment in role.runs}

    @cached_property
    def taker(self) -> Role | None:
        """The role that takes, if the layout has lanes."""
        return next((role for role in self.roles if role.take is not None), None)

    @property
    def lanes(self) -> int:
        """How many lanes there are; 0 where all roles go in step."""
        return 0 if self.taker is None else self.taker.of * self.taker.replicas

    def role(self, name: str) -> Role:
        return next(role for role in self.roles if role.name == name)

    def synchronous(self) -> "Layout":
        """The same roles in step with each other: nothing is taken early, nothing is read late."""
        roles = [replace(role, take=None, of=1, batch=1, wait=0.0, apart=False, free=False) for role in self.roles]
        return Layout(*roles, name=f"{self.name} in step")

    def __str__(self) -> str:
        bound = "" if self.max_lag is None else f", lag at most {self.max_lag}"
        registers = [f"register {source} -> {dest}{bound}" for source, dest in self.registers]
        return " | ".join([*map(str, self.roles), *registers])


def _with_lanes(roles: tuple[Role, ...]) -> tuple[Role, ...]:
    """The roles, where those that take know how many lanes serve each of their replicas."""
    lanes = min((role.replicas for role in roles if role.in_lane), default=0)
    return tuple(role if role.take is None else replace(role, of=lanes // role.replicas) for role in roles)


def _validate(roles: tuple[Role, ...]) -> None:
    if not roles:
        raise WeftError("a layout needs at least one role, as in Layout(Role('all', runs=('*',)))")
    for role in roles:
        if not role.runs or isinstance(role.runs, str):
            raise WeftError(
                f"role {role.name!r} must name the fragments it runs in a tuple, as in runs=('act', 'learn')"
            )
        counts = {"replicas": role.replicas, "devices": role.devices, "batch": role.batch}
        for field, count in (counts if role.take is None else counts | {"take": role.take}).items():
            if not isinstance(count, int) or count < 1:
                raise WeftError(f"role {role.name!r} has {field}={count!r}: give a whole number of at least 1")
    for what, names in (
        ("role", [role.name for role in roles]),
        ("fragment", [f for role in roles for f in role.runs]),
    ):
        for name in names:
            if names.count(name) > 1:
                raise WeftError(f"{what} {name!r} stands twice in the layout: each {what} has one place")


def _validate_asynchrony(layout: Layout) -> None:
    takers = [role.name for role in layout.roles if role.take is not None]
    if len(takers) > 1:
        raise WeftError(f"the roles {' and '.join(takers)} both take: lanes can serve one role that does")
    if layout.max_lag is not None and (not isinstance(layout.max_lag, int) or layout.max_lag < 0):
        raise WeftError(f"max_lag={layout.max_lag!r}: give a whole number of at least 0, or None for no bound")
    if (layout.registers or layout.max_lag is not None) and not takers:
        raise WeftError("registers and max_lag are for a layout with a role that takes, as in Role(..., take=1)")
    free = [role.name for role in layout.roles if role.free]
    if free and not takers:
        raise WeftError(f"{free[0]} is free of the lanes, but there are none: let a role take, as in Role(..., take=1)")
    names = {role.name for role in layout.roles}
    for source, dest in layout.registers:
        if source not in (*takers, *free) or dest not in names or dest == source:
            raise WeftError(
                f"register {source!r} -> {dest!r}: it goes from a role that takes or is free "
                f"({', '.join((*takers, *free))}) to another"
            )
    if layout.taker is not None:
        _validate_taker(layout, layout.taker)


def _validate_taker(layout: Layout, taker: Role) -> None:
    others = [role for role in layout.roles if role.in_lane]
    lanes = min((role.replicas for role in others), default=0)
    if not lanes:
        raise WeftError(f"{taker.name} takes, but there is no other role to take from")
    for role in others:
        if role.replicas % lanes:
            raise WeftError(f"{role.replicas} replicas of {role.name} do not divide evenly into {lanes} lanes")
    if lanes % taker.replicas:
        raise WeftError(
            f"{lanes} lanes cannot be shared out evenly over {taker.replicas} replicas of {taker.name}: "
            f"make it a multiple of {taker.replicas}"
        )
    if taker.of % (taker.take or 1):
        raise WeftError(
            f"{taker.name} takes {taker.take} of {taker.of} lanes: the first must divide the second, so that a run can "
            "end with everything taken"
        )
