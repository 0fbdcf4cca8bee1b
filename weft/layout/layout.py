"""A layout: which role runs which fragments, how many replicas each role has, and what need not wait.

>>> layout = Layout(Role("actor", runs=("env", "act"), replicas=4), Role("learner", runs=("learn",)))
>>> layout.placement
{'env': 'actor', 'act': 'actor', 'learn': 'learner'}
>>> print(layout)
actor x4 {env, act} | learner {learn}

By default all roles are synchronous: each iteration of a role waits for the values that it needs from the other roles.
Two options make a layout asynchronous. A role with `take=M` is a *consumer*: each of its iterations consumes the work
of M workers, the first that are ready. These workers are called *lanes*; each lane iterates at its own pace. A
*register* lets one role read the state that another role produces without waiting: it gets the latest version, a stale
read.

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
    """A named group of fragments, and how its replicas run them."""

    name: str
    runs: tuple[str, ...]
    """The fragments that the role runs. The name `*` stands for every fragment that the layout does not name."""
    replicas: int = 1
    """The number of independent copies of the role. Each replica has its own share of the environments."""
    devices: int = 1
    """The number of devices of each replica. A replica is one program over its devices; each device has its own share
    of the environments."""
    take: int | None = None
    """Makes the role a consumer: one iteration of a replica consumes the work of `take` of the lanes that serve it.
    None keeps the role in step with the others."""
    on: tuple[str, ...] = ()
    """The devices that the replicas are spread over, as in `("gpu:0", "gpu:1")`. Empty means the default devices."""
    batch: int = 1
    """The largest number of replicas whose calls of one compiled segment, inside a loop of the iteration, are batched
    into one call."""
    wait: float = 0.0
    """The longest time in seconds that such a call waits for others to fill its batch."""
    apart: bool = False
    """Declares the role's host code thread-safe. Parts of the role that depend on each other only by the order of host
    calls then become independent subroles."""
    free: bool = False
    """Makes the role neither a lane nor a consumer, in a layout that has both. It iterates at its own pace, and shares
    only registers with the lanes and the consumer."""
    lanes_per_replica: int = 1
    """The number of lanes that serve each replica of a consumer. The layout fills it in."""

    @property
    def in_lane(self) -> bool:
        """Whether its replicas belong to lanes, in a layout with a consumer."""
        return self.take is None and not self.free

    @property
    def instances(self) -> int:
        """The number of copies of the role's code that run: one for each device of each replica."""
        return self.replicas * self.devices

    @property
    def batch_divisor(self) -> int:
        """The number of shares into which the environments are divided. An instance handles one share per iteration."""
        return self.instances if self.take is None else self.lanes_per_replica * self.instances // self.take

    def __str__(self) -> str:
        copies = f" x{self.replicas}" if self.replicas > 1 else ""
        devices = f" on {self.devices} devices" if self.devices > 1 else ""
        devices = f" on {', '.join(self.on)}" if self.on else devices
        taking = "" if self.take is None else f" taking {self.take} of {self.lanes_per_replica}"
        taking = " free" if self.free else taking
        return f"{self.name}{copies}{devices}{taking} {{{', '.join(self.runs)}}}"


@dataclass(frozen=True)
class Layout:
    """The roles of one training loop, and the registers between them."""

    roles: tuple[Role, ...]
    name: str = "custom"
    registers: tuple[tuple[str, str], ...] = ()
    """Pairs of roles (source, reader): the reader reads the state that the source produces without waiting for it."""
    max_lag: int | None = None
    """The largest number of versions by which the work that is consumed may be out of date. None sets no bound."""

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
    def consumer(self) -> Role | None:
        """The role with `take`, if there is one."""
        return next((role for role in self.roles if role.take is not None), None)

    @property
    def lanes(self) -> int:
        """The number of lanes; 0 in a synchronous layout."""
        return 0 if self.consumer is None else self.consumer.lanes_per_replica * self.consumer.replicas

    @property
    def whole_divisor(self) -> int:
        """The number of batches into which the environments are divided; an iteration of the consumer learns from one.

        1 in a synchronous layout, and in one whose consumer takes all lanes.
        """
        consumer = self.consumer
        return 1 if consumer is None or consumer.take is None else consumer.lanes_per_replica // consumer.take

    def replicas_wait(self, role: Role) -> bool:
        """Whether the replicas of a role wait for each other, so that a merge covers all of them.

        Lanes of which the consumer takes only some do not.
        """
        return not role.in_lane or self.whole_divisor == 1

    def role(self, name: str) -> Role:
        return next(role for role in self.roles if role.name == name)

    def synchronous(self) -> "Layout":
        """The same roles without lanes and registers."""
        roles = [
            replace(role, take=None, lanes_per_replica=1, batch=1, wait=0.0, apart=False, free=False)
            for role in self.roles
        ]
        return Layout(*roles, name=f"{self.name} in step")

    def __str__(self) -> str:
        bound = "" if self.max_lag is None else f", lag at most {self.max_lag}"
        registers = [f"register {source} -> {dest}{bound}" for source, dest in self.registers]
        return " | ".join([*map(str, self.roles), *registers])


def _with_lanes(roles: tuple[Role, ...]) -> tuple[Role, ...]:
    """The roles, with `lanes_per_replica` set on the consumer."""
    lanes = min((role.replicas for role in roles if role.in_lane), default=0)
    return tuple(
        role if role.take is None else replace(role, lanes_per_replica=lanes // role.replicas) for role in roles
    )


def _validate(roles: tuple[Role, ...]) -> None:
    if not roles:
        raise WeftError("the layout has no roles: give at least one, as in Layout(Role('all', runs=('*',)))")
    for role in roles:
        if not role.runs or isinstance(role.runs, str):
            raise WeftError(
                f"role {role.name!r} has runs={role.runs!r}: name the fragments it runs in a tuple, "
                "as in runs=('act', 'learn')"
            )
        counts = {"replicas": role.replicas, "devices": role.devices, "batch": role.batch}
        for field, count in (counts if role.take is None else counts | {"take": role.take}).items():
            if not isinstance(count, int) or count < 1:
                raise WeftError(f"role {role.name!r} has {field}={count!r}: give a whole number of at least 1")
    _refuse_duplicates("role", [role.name for role in roles], "give every role a different name")
    _refuse_duplicates("fragment", [name for role in roles for name in role.runs], "let only one role run it")


def _refuse_duplicates(kind: str, names: list[str], advice: str) -> None:
    for name in names:
        if names.count(name) > 1:
            raise WeftError(f"the layout names {kind} {name!r} more than once: {advice}")


def _validate_asynchrony(layout: Layout) -> None:
    consumers = [role.name for role in layout.roles if role.take is not None]
    free = [role.name for role in layout.roles if role.free]
    if len(consumers) > 1:
        raise WeftError(f"the roles {' and '.join(consumers)} all have take: only one role of a layout may have it")
    if layout.max_lag is not None and (not isinstance(layout.max_lag, int) or layout.max_lag < 0):
        raise WeftError(f"max_lag={layout.max_lag!r}: give a whole number of at least 0, or None for no bound")
    if (layout.registers or layout.max_lag is not None) and not consumers:
        raise WeftError(
            "the layout has registers or max_lag, but no role with take: give take to the role that consumes the work "
            "of the others, as in Role(..., take=1), or leave registers and max_lag out"
        )
    if layout.max_lag is not None and not layout.registers:
        raise WeftError(
            f"max_lag={layout.max_lag} bounds how old the values read from registers may be, but the layout has no "
            f"registers: add registers=[({consumers[0]!r}, reader)], where the reader is the role that uses the state "
            f"of {consumers[0]}, or leave max_lag out"
        )
    if free and not consumers:
        raise WeftError(
            f"role {free[0]!r} has free=True, but no role has take: give take to another role, as in "
            "Role(..., take=1), or leave free out"
        )
    names = {role.name for role in layout.roles}
    for source, dest in layout.registers:
        if source not in (*consumers, *free) or dest not in names or dest == source:
            raise WeftError(
                f"register {source!r} -> {dest!r}: the first must be a role with take or free=True "
                f"({', '.join((*consumers, *free))}), and the second another role of the layout"
            )
    if layout.consumer is not None:
        _validate_consumer(layout, layout.consumer)


def _validate_consumer(layout: Layout, consumer: Role) -> None:
    others = [role for role in layout.roles if role.in_lane]
    lanes, served = min((role.replicas for role in others), default=0), consumer.lanes_per_replica
    if not lanes:
        raise WeftError(
            f"role {consumer.name!r} has take={consumer.take}, but the layout has no other role whose work it could "
            "consume: add one, or leave take out"
        )
    many = next((role for role in others if role.replicas > 1), None)
    if lanes == 1 and many is not None:
        single = next(role for role in others if role.replicas == 1)
        raise WeftError(
            f"{single.name} has one replica, so all {many.replicas} replicas of {many.name} would be a single lane "
            f"that {consumer.name} waits for: give {single.name} replicas={many.replicas}, make it part of another "
            f"role, or leave take out of {consumer.name}"
        )
    for role in others:
        if role.replicas % lanes:
            raise WeftError(
                f"{role.replicas} replicas of {role.name} cannot be divided evenly into {lanes} lanes: make their "
                f"number a multiple of {lanes}"
            )
    if lanes % consumer.replicas:
        raise WeftError(
            f"{lanes} lanes cannot be divided evenly over {consumer.replicas} replicas of {consumer.name}: make the "
            f"number of lanes a multiple of {consumer.replicas}"
        )
    if served % (consumer.take or 1):
        raise WeftError(
            f"{consumer.name} takes {consumer.take} of {served} lanes: make take a divisor of {served}, so that a run "
            "can end with the work of all lanes consumed"
        )
