"""The recent mean return."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.report.returns import Returns
from weft.report.update import Update

ITERATIONS = st.lists(st.tuples(st.floats(-500, 500), st.integers(0, 60)), max_size=30)


@given(ITERATIONS)
def test_the_mean_is_over_the_newest_iterations_with_at_least_100_episodes(iterations):
    returns = Returns()
    for mean, count in iterations:
        returns.add(mean * count, count)

    totals, episodes = [], 0
    for mean, count in reversed(iterations):
        if episodes >= 100:
            break
        totals.append(mean * count)
        episodes += count
    assert returns.episodes == sum(count for _, count in iterations)
    assert returns.return_mean == (pytest.approx(sum(totals) / episodes, abs=1e-6) if episodes else None)


def test_the_mean_is_none_without_episodes_and_other_metrics_are_ignored():
    returns = Returns()
    returns(Update(1, 2, 8, 0.1, {"loss": (np.ones(1), np.ones(1))}))
    returns(Update(2, 2, 16, 0.1, {"episode_return": (np.zeros(1), np.zeros(1))}))
    assert (returns.return_mean, returns.episodes) == (None, 0)
