"""A small dataset to learn from: what is right to do is told by the sign of what is seen."""

from pathlib import Path

import numpy as np

from weft.envs import make
from weft.replay.dataset import Recorder, Source

ENV = "gymnax:CartPole-v1"


def record(folder: Path, *, steps: int = 400, length: int = 20, wrong: float = 0.0) -> str:
    """Random steps of this environment's spaces; a share of `wrong` actions, which earn nothing."""
    rng, env = np.random.default_rng(0), make(ENV, 1)
    obs = rng.normal(size=(steps + 1, *env.observation_space.shape)).astype(np.float32)
    right = (obs[:-1, 0] > 0).astype(np.int32)
    errs = rng.uniform(size=steps) < wrong
    ended = np.arange(steps) % length == length - 1
    with Recorder(folder, Source(ENV, env.observation_space, env.action_space)) as recorder:
        recorder(
            {
                "obs": obs[:-1],
                "action": np.where(errs, 1 - right, right).astype(np.int32),
                "reward": (~errs).astype(np.float32),
                "terminated": ended,
                "truncated": np.zeros(steps, bool),
                "final_obs": obs[1:],
            }
        )
    return str(folder)
