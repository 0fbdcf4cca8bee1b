"""Snapshots are assembled from parts of one iteration, or with lanes from parts of about the same time."""

from weft.runtime.scatter import ReplicaId
from weft.runtime.snapshots import Snapshots

A, B = ("a", 0), ("b", 0)


def snapshots_of(*, synchronous: bool, every: int) -> Snapshots:
    return Snapshots(frozenset({A, B}), synchronous, lambda number: number % every == 0)


def offer(snapshots: Snapshots, replica: ReplicaId, iteration: int) -> None:
    snapshots.offer(replica, iteration, lambda: {0: iteration})


def test_synchronous_replicas_contribute_the_iteration_that_is_due() -> None:
    snapshots = snapshots_of(synchronous=True, every=2)
    for iteration in range(1, 5):
        offer(snapshots, A, iteration)
    for iteration in range(1, 5):
        offer(snapshots, B, iteration)
        assert snapshots.collect(iteration) == (None if iteration % 2 else {A: {0: iteration}, B: {0: iteration}})
    assert not snapshots.pending


def test_nothing_is_copied_when_no_snapshot_is_due() -> None:
    def unexpected_copy() -> dict[int, int]:
        raise AssertionError

    snapshots = snapshots_of(synchronous=True, every=100)
    snapshots.offer(A, 1, unexpected_copy)
    assert snapshots.collect(1) is None


def test_lanes_contribute_once_after_their_next_iteration() -> None:
    snapshots = snapshots_of(synchronous=False, every=5)
    offer(snapshots, A, 7)
    assert snapshots.collect(5) is None and snapshots.requested == 5
    for iteration in (8, 9):
        offer(snapshots, A, iteration)
        assert snapshots.collect(6) is None
    offer(snapshots, B, 3)
    assert snapshots.collect(7) == {A: {0: 8}, B: {0: 3}}
    assert (snapshots.requested, snapshots.pending) == (0, {})


def test_a_collected_snapshot_is_not_started_again() -> None:
    snapshots = snapshots_of(synchronous=False, every=1)
    snapshots.collect(1)
    for replica in (A, B):
        offer(snapshots, replica, 1)
    assert snapshots.collect(2) is not None
    offer(snapshots, A, 2)
    assert (snapshots.requested, snapshots.pending) == (0, {})
    assert snapshots.collect(3) is None and snapshots.requested == 3


def test_a_lane_that_has_ended_contributes_its_final_state() -> None:
    snapshots = snapshots_of(synchronous=False, every=5)
    snapshots.final[A] = {0: 4}
    assert snapshots.collect(5) is None
    offer(snapshots, B, 6)
    assert snapshots.collect(6) == {A: {0: 4}, B: {0: 6}}


def test_a_snapshot_is_complete_if_all_lanes_end_before_they_contribute() -> None:
    snapshots = snapshots_of(synchronous=False, every=5)
    assert snapshots.collect(5) is None
    snapshots.final |= {A: {0: 9}, B: {0: 9}}
    assert snapshots.collect(6) == snapshots.final
    assert snapshots.requested == 0
