"""Properties of all algorithms that collect experience into a replay table."""

from typing import Any

import pytest

from tests.envs.toy_envs import Masking
from weft.algos.discrete_sac import DiscreteSAC
from weft.algos.dqn import DQN
from weft.algos.off_policy import OffPolicy
from weft.algos.r2d2 import R2D2
from weft.runtime.driver import train_in_memory

SMALL: dict[str, Any] = {"num_envs": 4, "horizon": 2, "hidden": (8,), "batch_size": 8, "updates": 2, "capacity": 400}


class Strict(Masking):
    """Raises on actions that the mask rules out."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict]:
        assert self.mask()[action], (action, self.mask())
        return super().step(action)


@pytest.mark.parametrize("kind", [DQN, R2D2, DiscreteSAC])
def test_actions_respect_the_mask_in_warm_up_and_training(kind: type[OffPolicy]) -> None:
    algo = kind(**SMALL, warm_up_steps=160)
    result = train_in_memory(algo, "tests.algos.test_off_policy:Strict", steps=240)
    assert (result.steps, int(result.state.learner.updates)) == (240, 2 * (30 - algo.warm_up_iterations))
