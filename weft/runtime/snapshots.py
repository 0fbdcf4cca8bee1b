"""Snapshots of the whole state while a run goes on, assembled from the replicas' parts.

Synchronous replicas contribute their part after the very iteration that the snapshot is for. Lanes have no common
iteration: each replica contributes its part after its next iteration, and only one snapshot is requested at a time.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from weft.runtime.scatter import LeafValues, ReplicaId, ReplicaStates


@dataclass
class Snapshots:
    """Collects the replicas' parts of each snapshot. A snapshot is identified by an iteration."""

    replicas: frozenset[ReplicaId]
    synchronous: bool
    is_due: Callable[[int], bool]
    """Whether a snapshot is due at an iteration."""
    requested: int = 0
    """With lanes: the snapshot that was requested and is not complete yet, or 0."""
    pending: dict[int, ReplicaStates] = field(default_factory=dict)
    final: ReplicaStates = field(default_factory=dict)
    """The outputs of the replicas that have ended."""
    last_contributed: dict[ReplicaId, int] = field(default_factory=dict)

    def offer(self, replica: ReplicaId, iteration: int, copy_part: Callable[[], LeafValues]) -> None:
        """Called by a replica at the end of an iteration. Calls `copy_part` if a snapshot needs the replica's part."""
        wanted = iteration if self.synchronous and self.is_due(iteration) else self.requested
        # `pending` cannot tell whether the replica has contributed: the snapshot may have been collected meanwhile.
        if wanted and self.last_contributed.get(replica) != wanted:
            self.last_contributed[replica] = wanted
            self.pending.setdefault(wanted, {})[replica] = copy_part()

    def collect(self, iteration: int) -> ReplicaStates | None:
        """Returns a complete snapshot, if there is one when all metrics of `iteration` have been reported.

        With lanes, this also requests a new snapshot when one is due and no other is outstanding.
        """
        if self.synchronous:
            return self.pending.pop(iteration) if self.is_due(iteration) else None
        if not self.requested:
            self.requested = iteration if self.is_due(iteration) else 0
            return None
        parts = self.final | self.pending.get(self.requested, {})
        if parts.keys() != self.replicas:
            return None
        # If all replicas had ended before they could contribute, nothing is pending.
        self.pending.pop(self.requested, None)
        self.requested = 0
        return parts
