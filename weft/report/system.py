"""Where a run's time goes: what each role does with it, what crosses, and how late it is.

>>> shares = (Share("actor", 0.4, 0.5, 0.1), Share("learner", 0.9, 0.1, 0.0))
>>> edges = (Edge("actor", "learner", "stream", 10.0, 4e3, depth=1, most=2, sender_waits=0.5, receiver_waits=0.1),)
>>> system = System(seconds=1.0, roles=shares, edges=edges, lag=Lag({0: 5, 1: 5}))
>>> print(system.bottleneck)
learner computes 90 %, waits 10 %, sends 0 %
>>> print(system.lag)
0.5 in the mean, at most 1
>>> flat(system)["edge/actor-to-learner/stream/bytes_per_s"]
4000.0
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SHARES = ("computing", "waiting", "sending")

# The numbers of an edge by field, and the fields that say something about each kind.
NUMBERS = {
    "messages": "messages_per_s",
    "bytes": "bytes_per_s",
    "depth": "depth",
    "most": "depth_max",
    "sender_waits": "sender_waits_s",
    "receiver_waits": "receiver_waits_s",
}
KINDS = {
    "stream": tuple(NUMBERS),
    "register": ("messages", "bytes"),
    "lanes": ("messages", "depth", "most", "receiver_waits"),
    "begin": ("receiver_waits",),
    "merge": ("receiver_waits",),
    "batch": ("receiver_waits",),
    "report": ("sender_waits",),
}


@dataclass(frozen=True)
class Share:
    """What a role does with its time, over all of its replicas: the three shares add up to 1."""

    role: str
    computing: float
    waiting: float
    """For others: for messages, for room to send, for lanes, for replicas to meet."""
    sending: float
    """Handing over and copying, without the waiting for room."""

    def __str__(self) -> str:
        computes, waits, sends = (f"{100 * part:.0f} %" for part in (self.computing, self.waiting, self.sending))
        return f"{self.role} computes {computes}, waits {waits}, sends {sends}"


@dataclass(frozen=True)
class Edge:
    """What crosses from one role to another in one way, over all replicas and messages.

    A `stream` carries messages, a `register` the newest version, which each iteration of the receiver reads. `lanes`
    are pieces of work, which wait until the receiver takes them; then it lets their sender `begin` the next. Replicas
    of one role wait for each other at a `merge`, and to fill a `batch` of calls. A `report` is what a role measured: a
    role may not be far ahead of what others have reported.
    """

    source: str
    dest: str
    kind: str
    messages: float = 0.0
    """A second."""
    bytes: float = 0.0
    """A second."""
    depth: int = 0
    """Messages that were sent and not yet received, now."""
    most: int = 0
    """The largest depth of each stream, added up."""
    sender_waits: float = 0.0
    """Seconds, over all replicas."""
    receiver_waits: float = 0.0


@dataclass(frozen=True)
class Lag:
    """How many versions behind the work was that was taken: how often each lag."""

    counts: Mapping[int, int]

    @property
    def mean(self) -> float:
        return sum(lag * count for lag, count in self.counts.items()) / sum(self.counts.values())

    @property
    def max(self) -> int:
        return max(self.counts)

    def __str__(self) -> str:
        return f"{self.mean:.1f} in the mean, at most {self.max}"


@dataclass(frozen=True)
class System:
    """A reading of a run's counters: what happened in the last so many seconds."""

    seconds: float
    roles: tuple[Share, ...]
    """Those that were at work."""
    edges: tuple[Edge, ...]
    lag: Lag | None = None
    """None if nothing was taken, or if all roles go in step."""
    batches: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    """By role, how often so many calls were made as one."""

    @property
    def bottleneck(self) -> Share | None:
        """The role that computes most and waits least, if there are several."""
        return max(self.roles, key=lambda share: share.computing) if len(self.roles) > 1 else None


def flat(system: System) -> dict[str, Any]:
    """All numbers by name; only what counts by size (lags, batches) is itself by size."""
    shares = {f"role/{share.role}/{name}": getattr(share, name) for share in system.roles for name in SHARES}
    edges = {
        f"edge/{edge.source}-to-{edge.dest}/{edge.kind}/{NUMBERS[name]}": getattr(edge, name)
        for edge in system.edges
        for name in KINDS[edge.kind]
    }
    batches = {f"batch/{role}/counts": dict(sorted(sizes.items())) for role, sizes in system.batches.items()}
    return {**shares, **edges, **_flat_lag(system.lag), **batches}


def _flat_lag(lag: Lag | None) -> dict[str, Any]:
    if lag is None:
        return {}
    return {"lag/mean": lag.mean, "lag/max": lag.max, "lag/counts": dict(sorted(lag.counts.items()))}
