"""Chooses a few cases that together have every pair of properties that some case has.

Most faults show when two properties meet (an algorithm and a layout, a layout and a kind of environment), seldom only
when three do. A covering set of pairs therefore finds nearly what the full product finds, at a fraction of its size.

>>> from itertools import combinations
>>> cases = [(letter, number, sign) for letter in "ab" for number in (1, 2) for sign in "+-"]
>>> covering(cases, lambda case: combinations(case, 2))
[('a', 1, '+'), ('a', 2, '-'), ('b', 1, '-'), ('b', 2, '+')]
"""

import os
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

Case = TypeVar("Case")

FULL_SIZE = os.environ.get("WEFT_TESTS") == "all"
"""Whether the tests run every case (`make test-all`), or a covering set (`make test`)."""


def covering(cases: Sequence[Case], properties: Callable[[Case], Iterable[Hashable]]) -> list[Case]:
    """Cases, in their order, that have every property of `cases`: always the one that adds most is chosen next."""
    has = [frozenset(properties(case)) for case in cases]
    missing = frozenset().union(*has)
    chosen: set[int] = set()
    while missing:
        best = max(range(len(cases)), key=lambda index: (len(has[index] & missing), -index))
        chosen.add(best)
        missing -= has[best]
    return [case for index, case in enumerate(cases) if index in chosen]
