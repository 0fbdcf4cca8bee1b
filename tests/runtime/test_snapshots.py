"""States are put together from parts: of one iteration in step, of about the same time in lanes."""

from weft.runtime.snapshots import ReplicaId, Snapshots

A, B = ("a", 0), ("b", 0)


def snapshots(*, in_step: bool, due: int) -> Snapshots:
    return Snapshots(frozenset({A, B}), in_step, lambda number: number % due == 0)


def offer(given: Snapshots, here: ReplicaId, number: int) -> None:
    given.offer(here, number, lambda: {0: number})


def test_in_step_every_strand_hands_over_the_iteration_that_is_due() -> None:
    given = snapshots(in_step=True, due=2)
    for number in range(1, 5):
        offer(given, A, number)
    for number in range(1, 5):
        offer(given, B, number)
        assert given.take(number) == (None if number % 2 else {A: {0: number}, B: {0: number}})
    assert not given.parts


def test_in_step_nothing_is_copied_that_nobody_wants() -> None:
    def unwanted() -> dict[int, int]:
        raise AssertionError

    given = snapshots(in_step=True, due=100)
    given.offer(A, 1, unwanted)
    assert given.take(1) is None


def test_lanes_hand_over_their_part_once_when_they_next_can() -> None:
    given = snapshots(in_step=False, due=5)
    offer(given, A, 7)
    assert given.take(5) is None and given.asked == 5
    for number in (8, 9):
        offer(given, A, number)
        assert given.take(6) is None
    offer(given, B, 3)
    assert given.take(7) == {A: {0: 8}, B: {0: 3}}
    assert (given.asked, given.parts) == (0, {})


def test_what_was_taken_is_not_begun_again() -> None:
    given = snapshots(in_step=False, due=1)
    given.take(1)
    for here in (A, B):
        offer(given, here, 1)
    assert given.take(2) is not None
    offer(given, A, 2)
    assert (given.asked, given.parts) == (0, {})
    assert given.take(3) is None and given.asked == 3


def test_a_lane_that_has_ended_counts_with_what_it_ended_with() -> None:
    given = snapshots(in_step=False, due=5)
    given.ended[A] = {0: 4}
    assert given.take(5) is None
    offer(given, B, 6)
    assert given.take(6) == {A: {0: 4}, B: {0: 6}}


def test_all_lanes_may_have_ended_before_anything_was_handed_over() -> None:
    given = snapshots(in_step=False, due=5)
    assert given.take(5) is None
    given.ended |= {A: {0: 9}, B: {0: 9}}
    assert given.take(6) == given.ended
    assert given.asked == 0
