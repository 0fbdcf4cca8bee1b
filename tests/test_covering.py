"""The covering set has every property of the full product, is much smaller, and is the same every time."""

from itertools import combinations, product

import pytest

from tests.covering import covering

FACTORS = [(4, 3, 2), (5, 5, 5), (7, 1, 3), (2,) * 8]


def pairs(case):
    """Every two of a case's values, each with its position."""
    return combinations(enumerate(case), 2)


@pytest.mark.parametrize("sizes", FACTORS)
def test_every_pair_of_the_product_is_covered(sizes):
    cases = list(product(*map(range, sizes)))
    chosen = covering(cases, pairs)
    assert {pair for case in chosen for pair in pairs(case)} == {pair for case in cases for pair in pairs(case)}
    assert chosen == covering(cases, pairs)
    largest_two = sorted(sizes)[-2:]
    assert len(chosen) <= 2 * largest_two[0] * largest_two[1]


def test_a_property_that_one_case_alone_has_is_covered():
    assert covering(["a", "ab", "abc", "d"], frozenset) == ["abc", "d"]
    assert covering([], frozenset) == []
