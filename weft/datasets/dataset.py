"""A dataset in memory: steps of whole episodes, and the environment that they were recorded in.

>>> space = gym.spaces.Box(-1, 1, (2,))
>>> steps = {"obs": np.zeros((3, 2), np.float32), "action": np.array([0, 1, 1], np.int32), "reward": np.ones(3)}
>>> steps |= {"terminated": np.array([False, False, True]), "truncated": np.zeros(3, bool), "final_obs": steps["obs"]}
>>> dataset = Dataset(Source("mine", space, gym.spaces.Discrete(2)), steps)
>>> len(dataset), dataset.episodes, dataset.returns.tolist(), dataset.table().sample(8).data["obs"].shape
(3, 1, [3.0], (8, 2))
"""

import json
from dataclasses import dataclass
from typing import Any, Self

import gymnasium as gym
import jax
import numpy as np

from weft.envs.space_json import space_from_json, space_to_json
from weft.envs.spaces import dtype, map_space
from weft.replay.table import Table

Steps = dict[str, Any]
"""Consecutive steps, leaves [N, ...]: `obs`, `action`, `reward`, `terminated`, `truncated`, `final_obs`."""


@dataclass(frozen=True)
class Source:
    """The environment that a dataset was recorded in: its name and spaces."""

    env: str
    observation_space: gym.Space
    action_space: gym.Space

    @property
    def step(self) -> Steps:
        """The shapes and dtypes of one step."""
        obs, action = (_shapes_of_one(space) for space in (self.observation_space, self.action_space))
        dtypes = {"reward": np.float32, "terminated": np.bool_, "truncated": np.bool_}
        scalars = {name: jax.ShapeDtypeStruct((), kind) for name, kind in dtypes.items()}
        return {"obs": obs, "action": action, **scalars, "final_obs": obs}

    def to_json(self) -> str:
        spaces = {"observation_space": self.observation_space, "action_space": self.action_space}
        return json.dumps({"env": self.env, **{name: space_to_json(space) for name, space in spaces.items()}})

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        fields = json.loads(text)
        return cls(fields["env"], *(space_from_json(fields[name]) for name in ("observation_space", "action_space")))


@dataclass(frozen=True)
class Dataset:
    """All steps of a dataset, episode after episode."""

    source: Source
    steps: Steps

    def __len__(self) -> int:
        return len(self.steps["reward"])

    @property
    def ended(self) -> np.ndarray:
        """Whether each step is the last of its episode."""
        return self.steps["terminated"] | self.steps["truncated"]

    @property
    def episodes(self) -> int:
        """The number of episodes."""
        return int(self.ended.sum())

    @property
    def returns(self) -> np.ndarray:
        """The sum of rewards of each episode."""
        starts = np.flatnonzero(np.concatenate([[True], self.ended[:-1]]))
        return np.add.reduceat(self.steps["reward"], starts)

    def table(self, **options: Any) -> Table:
        """A replay table on the host that holds every step; `options` are those of `weft.replay.Table`."""
        table = Table(self.source.step, capacity=len(self), **options)
        table.insert(self.steps)
        return table


def _shapes_of_one(space: gym.Space) -> Any:
    """The shapes and dtypes of one element of a space."""
    return map_space(lambda part: jax.ShapeDtypeStruct(part.shape or (), dtype(part)), space)
