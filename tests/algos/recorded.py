"""A small dataset: the sign of the first observation coordinate determines the rewarded action."""

from pathlib import Path

import gymnasium as gym
import numpy as np

from weft.datasets.dataset import Source
from weft.datasets.parquet import DatasetWriter
from weft.envs import make

ENV, CONTINUOUS = "gymnax:CartPole-v1", "gymnax:Pendulum-v1"


def record(folder: Path, env: str = ENV, *, steps: int = 400, length: int = 20, error_rate: float = 0.0) -> str:
    """Record random steps in an environment's spaces; a fraction `error_rate` of actions is wrong, with reward 0."""
    rng, world = np.random.default_rng(0), make(env, 1)
    obs = rng.normal(size=(steps + 1, *world.observation_space.shape)).astype(np.float32)
    right = obs[:-1, 0] > 0
    wrong = rng.uniform(size=steps) < error_rate
    ended = np.arange(steps) % length == length - 1
    with DatasetWriter(folder, Source(env, world.observation_space, world.action_space)) as writer:
        writer.write(
            {
                "obs": obs[:-1],
                "action": action_for(world.action_space, right != wrong),
                "reward": (~wrong).astype(np.float32),
                "terminated": ended,
                "truncated": np.zeros(steps, bool),
                "final_obs": obs[1:],
            }
        )
    return str(folder)


def action_for(space: gym.Space, first: np.ndarray) -> np.ndarray:
    """One of two actions: 1 and 0 in a discrete space, 1 and -1 in a continuous one."""
    if isinstance(space, gym.spaces.Discrete):
        return first.astype(np.int32)
    assert space.shape is not None
    return np.where(first, 1.0, -1.0).astype(np.float32).reshape(-1, *space.shape)
