"""The in-process pool against a straightforward reference implementation."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.envs import toy_envs
from tests.envs.random_walks import make_factory
from weft.envs.pools.failures import EnvFailed
from weft.envs.pools.sequential import MAX_CONSECUTIVE_RESTARTS, seed_after_restarts

NUM_ENVS = 3


class ReferenceRow:
    """The reference implementation of one row."""

    def __init__(self, scripts, seed):
        self.scripts, self.seed, self.restarts, self.unproven = scripts, seed, 0, 0
        self.finished, self.dropped, self.returns, self.lengths = 0, 0, 0.0, 0
        self.begin()

    def begin(self):
        self.env = toy_envs.ScriptedGymEnv(self.scripts)
        self.obs, _ = self.env.reset(seed=seed_after_restarts(self.seed, self.restarts))
        self.total, self.length = 0.0, 0

    def step(self, action, last):
        """Returns the fields of the step for this row, or None if the pool must raise."""
        try:
            obs, reward, terminated, truncated, _ = self.env.step(action)
        except ValueError:
            return self.fail()
        self.unproven = 0
        self.total, self.length = self.total + reward, self.length + 1
        final = self.obs = obs
        truncated = (truncated or last) and not terminated
        if terminated or truncated:
            self.finished, self.returns = self.finished + 1, self.returns + self.total
            self.lengths += self.length
            self.obs, _ = self.env.reset()
            self.total, self.length = 0.0, 0
        return self.obs, reward, terminated, truncated, final, True

    def fail(self):
        if self.unproven == MAX_CONSECUTIVE_RESTARTS:
            return None
        final = self.obs
        self.dropped, self.restarts, self.unproven = self.dropped + 1, self.restarts + 1, self.unproven + 1
        self.begin()
        return self.obs, 0.0, False, True, final, False


scripts = st.lists(st.text(alphabet="....tcb!", min_size=1, max_size=6), min_size=1, max_size=4).map(tuple)
moves = st.lists(st.tuples(st.lists(st.integers(0, 4), min_size=3, max_size=3), st.integers(0, 7)), max_size=25)


@given(scripts=scripts, moves=moves, seeds=st.lists(st.integers(0, 2**31 - 1), min_size=3, max_size=3))
def test_a_pool_equals_the_reference(scripts, moves, seeds):
    pool = make_factory(toy_envs.ScriptedGymEnv, scripts=scripts, vector="inprocess", on_error="restart").make_pool(
        range(NUM_ENVS), seeds
    )
    rows = [ReferenceRow(scripts, seed) for seed in seeds]
    assert (pool.reset() == [row.obs for row in rows]).all()
    for actions, bits in moves:
        last = np.array([bool(bits & 1 << row) for row in range(NUM_ENVS)])
        expected = [row.step(action, cut) for row, action, cut in zip(rows, actions, last.tolist(), strict=True)]
        try:
            step = pool.step(np.array(actions, np.int32), last)
        except EnvFailed:
            assert None in expected
            return
        assert None not in expected
        found = (step.obs, step.reward, step.terminated, step.truncated, step.final_obs, step.valid)
        for array, wanted in zip(found, zip(*expected, strict=True), strict=True):
            np.testing.assert_array_equal(array, np.array(wanted, array.dtype))
    totals = pool.pop_totals()
    for name in ("returns", "lengths", "finished", "dropped"):
        assert getattr(totals, name).tolist() == [getattr(row, name) for row in rows]
