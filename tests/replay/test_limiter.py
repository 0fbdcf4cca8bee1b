"""The limiters' formulas at their limits."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from weft.errors import WeftError
from weft.replay import Limiter, MinimumSize, Queue, SamplesPerInsert, Stack

COUNT = st.integers(0, 50)


def test_minimum_size_requires_only_items():
    limiter = MinimumSize(5)
    assert not limiter.may_sample(1, inserted=100, sampled=0, size=4)
    assert limiter.may_sample(10**6, inserted=5, sampled=10**9, size=5)
    assert limiter.may_insert(10**6, inserted=10**9, sampled=0, size=5)


def test_samples_per_insert_blocks_at_its_limits():
    """With ratio 2 and minimum 10 the target is 20: samples block at 15 and inserts at 25."""
    limiter = SamplesPerInsert(ratio=2.0, minimum=10, error=5.0)
    assert (limiter.least, limiter.most) == (15.0, 25.0)
    assert not limiter.may_sample(1, inserted=9, sampled=0, size=9)
    assert limiter.may_sample(5, inserted=10, sampled=0, size=10)
    assert not limiter.may_sample(6, inserted=10, sampled=0, size=10)
    assert limiter.may_insert(2, inserted=10, sampled=0, size=10)
    assert not limiter.may_insert(3, inserted=10, sampled=0, size=10)
    assert limiter.may_insert(3, inserted=10, sampled=1, size=10)


def test_inserts_up_to_the_minimum_are_always_allowed_even_after_deletes():
    limiter = SamplesPerInsert(ratio=1.0, minimum=10, error=1.0)
    assert limiter.may_insert(10, inserted=0, sampled=0, size=0)
    assert not limiter.may_insert(1, inserted=11, sampled=0, size=10)
    assert limiter.may_insert(1, inserted=11, sampled=0, size=9)


@pytest.mark.parametrize("make", [Queue, Stack])
def test_a_queue_holds_the_unsampled_items(make):
    limiter = make(3)
    assert limiter.may_insert(3, inserted=0, sampled=0, size=0)
    assert not limiter.may_insert(4, inserted=0, sampled=0, size=0)
    assert limiter.may_insert(1, inserted=5, sampled=3, size=2)
    assert not limiter.may_insert(1, inserted=6, sampled=3, size=3)
    assert limiter.may_sample(2, inserted=5, sampled=3, size=2)
    assert not limiter.may_sample(3, inserted=5, sampled=3, size=2)
    assert make(1).may_insert(1, inserted=4, sampled=4, size=0)


@given(
    st.sampled_from([0.5, 1.0, 4.0]), st.integers(1, 10), st.sampled_from([4.0, 10.0]), COUNT, st.booleans(), st.data()
)
def test_a_call_reported_as_never_possible_is_never_allowed_later(ratio, minimum, error, n, insert, data):
    """After `never_*` rejects n, no sequence of allowed inserts and samples leads to a state that allows n."""
    limiter = SamplesPerInsert(ratio, minimum, error)
    may, never = (limiter.may_insert, limiter.never_insert) if insert else (limiter.may_sample, limiter.never_sample)
    inserted = sampled = refused = 0
    for write, count in data.draw(st.lists(st.tuples(st.booleans(), st.integers(1, 20)), max_size=30)):
        asked = (n + 1, inserted, sampled, inserted)
        refused |= bool(never(*asked))
        assert not (refused and may(*asked))
        if write and limiter.may_insert(count, inserted, sampled, inserted):
            inserted += count
        elif not write and limiter.may_sample(count, inserted, sampled, inserted):
            sampled += count


def test_the_largest_possible_call_shrinks_after_the_start():
    """At first a call may use the minimum and the error; later, twice the error and the current difference."""
    limiter = SamplesPerInsert(ratio=4.0, minimum=10, error=8.0)
    assert limiter.may_insert(12, 0, 0, 0) and not limiter.never_insert(12, 0, 0, 0)
    assert limiter.never_insert(13, 0, 0, 0) == "its limiter allows at most 12 inserts at once"
    assert limiter.never_insert(11, 20, 40, 20) == "its limiter allows at most 10 inserts at once"
    assert not limiter.never_sample(16, 10, 0, 10) and "at most 16 samples" in limiter.never_sample(17, 10, 0, 10)


@given(st.builds(SamplesPerInsert, st.sampled_from([0.5, 2.0]), st.integers(1, 9), st.just(3.0)), COUNT, COUNT)
def test_an_insert_or_a_sample_is_always_allowed(limiter, inserted, sampled):
    one = (1, inserted, sampled, inserted)
    assert limiter.may_insert(*one) or limiter.may_sample(*one)


@pytest.mark.parametrize(
    "call",
    [
        lambda: MinimumSize(0),
        lambda: SamplesPerInsert(0.0, 1, 5.0),
        lambda: SamplesPerInsert(float("nan"), 1, 5.0),
        lambda: SamplesPerInsert(8.0, 1, 7.0),
        lambda: SamplesPerInsert(0.1, 1, 0.9),
        lambda: Queue(0),
        lambda: Limiter(1.0, 1, 5.0, 5.5),
    ],
)
def test_limiters_that_would_block_everything_are_rejected(call):
    with pytest.raises(WeftError):
        call()


def test_a_limiter_explains_why_it_blocks():
    limiter = SamplesPerInsert(ratio=2.0, minimum=10, error=5.0)
    assert limiter.why_not_sample(1, 9, 0, 9) == "it holds 9 items and the limiter requires 10"
    assert "6 more would be 6 samples too many and the limiter allows 5" in limiter.why_not_sample(6, 10, 0, 10)
    assert "3 more would be 6 samples ahead and the limiter allows 5" in limiter.why_not_insert(3, 10, 0, 10)
