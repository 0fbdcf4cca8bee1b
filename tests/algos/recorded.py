"""A small dataset to learn from: what is right to do is told by the sign of what is seen."""

from pathlib import Path

import gymnasium as gym
import numpy as np

from weft.datasets.dataset import Source
from weft.datasets.parquet import DatasetWriter
from weft.envs import make

ENV, NUMBERS = "gymnax:CartPole-v1", "gymnax:Pendulum-v1"


def record(folder: Path, env: str = ENV, *, steps: int = 400, length: int = 20, wrong: float = 0.0) -> str:
    """Random steps of an environment's spaces; a share of `wrong` actions, which earn nothing."""
    rng, world = np.random.default_rng(0), make(env, 1)
    obs = rng.normal(size=(steps + 1, *world.observation_space.shape)).astype(np.float32)
    right = obs[:-1, 0] > 0
    errs = rng.uniform(size=steps) < wrong
    ended = np.arange(steps) % length == length - 1
    with DatasetWriter(folder, Source(env, world.observation_space, world.action_space)) as writer:
        writer.write(
            {
                "obs": obs[:-1],
                "action": action_for(world.action_space, right != errs),
                "reward": (~errs).astype(np.float32),
                "terminated": ended,
                "truncated": np.zeros(steps, bool),
                "final_obs": obs[1:],
            }
        )
    return str(folder)


def action_for(space: gym.Space, yes: np.ndarray) -> np.ndarray:
    """Two actions: the choices 1 and 0, the numbers 1 and -1."""
    if isinstance(space, gym.spaces.Discrete):
        return yes.astype(np.int32)
    assert space.shape is not None
    return np.where(yes, 1.0, -1.0).astype(np.float32).reshape(-1, *space.shape)
