"""Inner sums equal the sums of the leaves exactly, and draws match a cumulative sum."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from weft.errors import WeftError
from weft.replay import Prioritised, importance_weights
from weft.replay.sumtree import FAN, SORT_FROM, TOP, SumTree

TOPS = st.sampled_from([1, 16, TOP])


def rebuilt(tree, capacity):
    other = SumTree(capacity, len(tree.levels[-1]))
    other.set(np.arange(capacity), tree.weights[:capacity])
    return other


@settings(max_examples=50)
@given(st.sampled_from([1, 16, 500, 513, 9000, 140_000]), TOPS, st.integers(0, 2**32))
def test_sums_depend_only_on_the_leaves(capacity, top, seed):
    rng = np.random.default_rng(seed)
    tree = SumTree(capacity, top)
    for _ in range(10):
        n = int(rng.integers(0, min(capacity, 200) + 1))
        first = int(rng.integers(0, capacity - n + 1))
        slots = rng.integers(0, capacity, n) if rng.random() < 0.5 else np.arange(first, first + n)
        tree.set(slots, rng.random(n) * 10.0 ** rng.integers(-200, 200))
    for level, expected in zip(tree.levels, rebuilt(tree, capacity).levels, strict=True):
        np.testing.assert_array_equal(level, expected)


@settings(max_examples=30)
@given(st.sampled_from([1, 17, 513, 5000, 140_000]), TOPS, st.sampled_from([1, 100, SORT_FROM]), st.integers(0, 2**32))
def test_a_draw_reaches_the_leaf_that_the_cumulative_sum_gives(capacity, top, n, seed):
    rng = np.random.default_rng(seed)
    weights = rng.integers(0, 4, capacity).astype(float)
    weights[rng.integers(capacity)] = 1
    tree = SumTree(capacity, top)
    tree.set(np.arange(capacity), weights)
    slots, probabilities = tree.choose(n, np.random.default_rng(seed))
    draws = np.random.default_rng(seed).random(n) * weights.sum()
    assert slots.tolist() == weights.cumsum().searchsorted(draws, side="right").tolist()
    np.testing.assert_array_equal(probabilities, weights[slots] / weights.sum())


@given(TOPS, st.integers(0, 2**32))
def test_a_slot_of_weight_zero_is_never_chosen(top, seed):
    """Weights of very different sizes cause rounding in the sums; still no draw reaches an empty slot."""
    rng = np.random.default_rng(seed)
    tree = SumTree(2000, top)
    weights = np.where(rng.random(2000) < 0.5, 10.0 ** rng.uniform(-300, 10, 2000), 0)
    weights[7] = 1
    tree.set(np.arange(2000), weights)
    for draws in (tree.choose(500, rng)[0], tree._descend(np.full(64, weights.sum()))):
        assert ((draws >= 0) & (draws < len(tree.weights))).all()
    assert (weights[tree.choose(500, rng)[0]] > 0).all()


def test_zero_weights_give_no_draw_and_infinite_sums_raise_an_error():
    sampler = Prioritised(1.0)
    sampler.allocate(10)
    sampler.insert(np.array([2, 5]), np.zeros(2))
    slots, probabilities = sampler.choose(50, np.random.default_rng(0))
    assert set(slots.tolist()) == {2, 5} and set(probabilities.tolist()) == {0.5}
    sampler.insert(np.array([2, 5]), np.full(2, 1e308))
    with pytest.raises(WeftError, match="sum to inf: expected a finite sum"):
        sampler.choose(1, np.random.default_rng(0))
    sampler.insert(np.array([2]), np.ones(1))
    assert sampler.choose(1, np.random.default_rng(0))[0].tolist() == [5]


@pytest.mark.parametrize("exponent", [-0.1, np.inf, np.nan])
def test_invalid_exponents_are_rejected(exponent):
    with pytest.raises(WeftError, match="priority exponent is .*: expected a finite number of at least 0"):
        Prioritised(exponent)


def test_each_level_holds_all_children():
    for capacity in (1, 15, 16, 17, 513, 8193):
        levels = SumTree(capacity).levels
        assert len(levels[0]) >= capacity
        assert all(len(below) <= FAN * len(above) for below, above in zip(levels, levels[1:], strict=False))


def test_importance_weights_correct_the_bias():
    probability = np.array([0.1, 0.2, 0.7])
    weights = importance_weights(probability, 3, 1.0)
    np.testing.assert_allclose(weights * probability, 0.1)
    assert importance_weights(probability, 3, 0.0).tolist() == [1.0, 1.0, 1.0]
