"""Measurements of a distributed run: how each role spends its time, the traffic on each edge, and the lag.

>>> roles = (RoleTime("actor", 0.4, 0.5, 0.1), RoleTime("learner", 0.9, 0.1, 0.0))
>>> edge = EdgeTraffic("actor", "learner", "stream", messages=10.0, bytes=4e3, depth=1, depth_max=2, sender_waits=0.5)
>>> system = System(seconds=1.0, roles=roles, edges=(edge,), lag=Lag({0: 5, 1: 5}))
>>> print(system.bottleneck)
learner computes 90 %, waits 10 %, sends 0 %
>>> print(system.lag)
mean 0.5, max 1
>>> numbers_by_name(system)["edge/actor-to-learner/stream/bytes_per_s"]
4000.0
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

ACTIVITIES = ("computing", "waiting", "sending")

# The names in logs of the fields of `EdgeTraffic`, and the fields that each kind of edge has.
EDGE_FIELDS = {
    "messages": "messages_per_s",
    "bytes": "bytes_per_s",
    "depth": "depth",
    "depth_max": "depth_max",
    "sender_waits": "sender_waits_s",
    "receiver_waits": "receiver_waits_s",
}
FIELDS_OF_KIND = {
    "stream": tuple(EDGE_FIELDS),
    "register": ("messages", "bytes"),
    "lanes": ("messages", "depth", "depth_max", "receiver_waits"),
    "begin": ("receiver_waits",),
    "merge": ("receiver_waits",),
    "batch": ("receiver_waits",),
    "report": ("sender_waits",),
}


@dataclass(frozen=True)
class RoleTime:
    """The fractions of a role's time, over all of its replicas, that go to each activity. They add up to 1."""

    role: str
    computing: float
    waiting: float
    """For messages, for space in a full stream, for lanes, or for the other replicas at a barrier."""
    sending: float
    """Copying and sending messages, without waiting for space."""

    def __str__(self) -> str:
        computes, waits, sends = (
            f"{100 * fraction:.0f} %" for fraction in (self.computing, self.waiting, self.sending)
        )
        return f"{self.role} computes {computes}, waits {waits}, sends {sends}"


@dataclass(frozen=True)
class EdgeTraffic:
    """The traffic of one kind from one role to another, over all replicas and messages.

    `kind` is one of:

    - `stream`: messages of a stream, each read once;
    - `register`: versions of a register, read once per iteration of the receiver;
    - `lanes`: the work of lanes, which waits until the consumer takes it;
    - `begin`: lanes that wait until the consumer admits their next iteration;
    - `merge`: replicas of one role that wait for each other in an all-reduce;
    - `batch`: replicas of one role that wait for each other to fill a batch of calls;
    - `report`: metrics, which a role sends no more than a few iterations ahead of the other roles.
    """

    source: str
    dest: str
    kind: str
    messages: float = 0.0
    """Per second."""
    bytes: float = 0.0
    """Per second."""
    depth: int = 0
    """Messages sent but not yet received, at the time of the reading."""
    depth_max: int = 0
    """The sum of the largest depths of all streams."""
    sender_waits: float = 0.0
    """In seconds, summed over all replicas."""
    receiver_waits: float = 0.0


@dataclass(frozen=True)
class Lag:
    """The lags of the work that the consumer took, as the number of times that each lag occurred."""

    counts: Mapping[int, int]

    @property
    def mean(self) -> float:
        return sum(lag * count for lag, count in self.counts.items()) / sum(self.counts.values())

    @property
    def max(self) -> int:
        return max(self.counts)

    def __str__(self) -> str:
        return f"mean {self.mean:.1f}, max {self.max}"


@dataclass(frozen=True)
class System:
    """A reading of a run's counters, over the last `seconds`."""

    seconds: float
    roles: tuple[RoleTime, ...]
    """The roles that ran in this time."""
    edges: tuple[EdgeTraffic, ...]
    lag: Lag | None = None
    """None if no work was taken, or if the layout is synchronous."""
    batches: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    """By role: the number of batched calls of each batch size."""

    @property
    def bottleneck(self) -> RoleTime | None:
        """The role that computes for the largest fraction of its time, if there are several roles."""
        return max(self.roles, key=lambda role: role.computing) if len(self.roles) > 1 else None


def numbers_by_name(system: System) -> dict[str, Any]:
    """Returns all numbers by their names in logs. Lag counts and batch sizes are dictionaries from size to count."""
    roles = {f"role/{role.role}/{name}": getattr(role, name) for role in system.roles for name in ACTIVITIES}
    edges = {
        f"edge/{edge.source}-to-{edge.dest}/{edge.kind}/{EDGE_FIELDS[name]}": getattr(edge, name)
        for edge in system.edges
        for name in FIELDS_OF_KIND[edge.kind]
    }
    batches = {f"batch/{role}/counts": dict(sorted(sizes.items())) for role, sizes in system.batches.items()}
    return {**roles, **edges, **_lag_numbers(system.lag), **batches}


def _lag_numbers(lag: Lag | None) -> dict[str, Any]:
    if lag is None:
        return {}
    return {"lag/mean": lag.mean, "lag/max": lag.max, "lag/counts": dict(sorted(lag.counts.items()))}
