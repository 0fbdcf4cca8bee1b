"""Properties of the recent mean return."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.report.returns import Returns
from weft.report.update import Update

ITERATIONS = st.lists(st.tuples(st.floats(-500, 500), st.integers(0, 60)), max_size=30)


@given(ITERATIONS)
def test_mean_is_over_the_newest_iterations_that_hold_enough_episodes(iterations):
    returns = Returns()
    for mean, count in iterations:
        returns.add(mean * count, count)

    kept, held = [], 0
    for mean, count in reversed(iterations):
        if held >= 100:
            break
        kept.append(mean * count)
        held += count
    assert returns.episodes == sum(count for _, count in iterations)
    assert returns.return_mean == (pytest.approx(sum(kept) / held, abs=1e-6) if held else None)


def test_nothing_finished_is_none_and_other_metrics_are_ignored():
    returns = Returns()
    returns(Update(1, 2, 8, 0.1, {"loss": (np.ones(1), np.ones(1))}))
    returns(Update(2, 2, 16, 0.1, {"episode_return": (np.zeros(1), np.zeros(1))}))
    assert (returns.return_mean, returns.episodes) == (None, 0)
