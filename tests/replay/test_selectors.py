"""Selectors with many slots, gaps and long use; `test_table` covers them in small tables."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from tests.replay.table_model import RANDOM, SELECTORS
from weft.replay import Fifo, Lifo, MinHeap, Selector, Uniform


class Newest(Selector):
    """A selector as a user would write it."""

    def __init__(self):
        self.slots = []

    def insert(self, slots, priorities):
        self.slots += [slot for slot in slots.tolist() if slot not in self.slots]

    def remove(self, slots):
        self.slots = [slot for slot in self.slots if slot not in slots]

    def choose(self, n, rng):
        return np.full(n, self.slots[-1]), np.ones(n)


def make(kind, capacity):
    selector = SELECTORS[kind]()
    selector.allocate(capacity)
    return selector


@settings(max_examples=40)
@given(st.sampled_from(sorted(SELECTORS)), st.integers(0, 2**32))
def test_popped_slots_are_distinct_and_were_present(kind, seed):
    """A long random sequence of inserts, removals and pops of many slots, so that gaps appear and are closed."""
    rng = np.random.default_rng(seed)
    selector, there = make(kind, 300), set()
    for _ in range(60):
        free = rng.permutation(sorted(set(range(300)) - there))[: rng.integers(1, 120)]
        selector.insert(free, rng.random(len(free)))
        there |= set(free.tolist())
        gone = rng.permutation(sorted(there))[: rng.integers(0, len(there))]
        selector.remove(gone)
        there -= set(gone.tolist())
        slots, probabilities = selector.pop(int(rng.integers(0, len(there) + 1)), rng)
        assert len(set(slots.tolist())) == len(slots) and set(slots.tolist()) <= there
        assert ((probabilities > 0) & (probabilities <= 1)).all()
        there -= set(slots.tolist())
    if there:
        assert set(selector.pop(len(there), rng)[0].tolist()) == there


@pytest.mark.parametrize(("kind", "expected"), [(Fifo, [3, 1, 2]), (Lifo, [2, 1, 3]), (Newest, [2, 1, 3])])
def test_the_insertion_order_survives_priority_changes_and_removals(kind, expected):
    selector, rng = kind(), np.random.default_rng(0)
    selector.allocate(5)
    selector.insert(np.array([0, 3, 1]), np.ones(3))
    selector.insert(np.array([2]), np.ones(1))
    selector.insert(np.array([3, 0]), np.zeros(2))
    selector.remove(np.array([0]))
    assert selector.choose(3, rng)[0].tolist() == expected[:1] * 3
    assert selector.pop(3, rng)[0].tolist() == expected


def test_a_heap_discards_stale_entries():
    heap = MinHeap()
    heap.allocate(10)
    for number in range(10_000):
        heap.insert(np.arange(10), np.arange(10) + (number % 7))
    assert len(heap.heap) < 10_000
    assert heap.pop(10, np.random.default_rng(0))[0].tolist() == list(range(10))


@pytest.mark.parametrize("kind", RANDOM)
def test_draws_are_proportional_to_the_weights(kind):
    """Within five standard deviations, for draws with and without replacement alike."""
    selector, rng = make(kind, 50), np.random.default_rng(1)
    priorities = np.array([0.0, 1.0, 2.0, 5.0] * 12)
    selector.insert(np.arange(48), priorities)
    weights = np.ones(48) if kind == "uniform" else priorities**0.7
    expected = weights / weights.sum()
    slots, probabilities = selector.choose(100_000, rng)
    np.testing.assert_allclose(probabilities, expected[slots], rtol=1e-12)
    off = np.bincount(slots, minlength=48) - 100_000 * expected
    assert (abs(off) <= 5 * np.sqrt(100_000 * expected)).all()
    firsts = []
    for _ in range(2000):
        first, second = selector.pop(2, rng)[0]
        firsts.append((first % 4, second % 4))
        selector.insert(np.array([first, second]), priorities[[first, second]])
    again = np.array(firsts)
    for column in again.T:
        share = np.bincount(column, minlength=4) / 2000
        np.testing.assert_allclose(share, expected[:4] * 12, atol=0.06)


def test_uniform_pops_each_slot_with_the_same_probability():
    selector, counts = Uniform(), np.zeros(5)
    selector.allocate(5)
    rng = np.random.default_rng(0)
    selector.insert(np.arange(5), np.ones(5))
    for _ in range(2000):
        slots, probabilities = selector.pop(2, rng)
        assert probabilities.tolist() == [1 / 5, 1 / 4]
        counts[slots] += 1
        selector.insert(slots, np.ones(2))
    np.testing.assert_allclose(counts / 2000, 0.4, atol=0.05)
