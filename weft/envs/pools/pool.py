"""What a host environment is to weft: a pool of environments in plain Python and NumPy.

A `Game` says what is played and makes pools of it; it is a value (hashable, equal by what it plays), because it is part
of a traced program. A `Pool` is a number of running environments that are stepped together. `weft.envs.adapters.host`
turns a game into an `Env`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import gymnasium as gym
import numpy as np


@dataclass(frozen=True)
class Stepped:
    """One step of every environment of a pool: the fields of a `TimeStep`, as NumPy arrays that nobody will change."""

    obs: Any
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    final_obs: Any
    """May be the very same arrays as `obs` where no episode ended."""
    valid: np.ndarray


@dataclass(frozen=True)
class Totals:
    """By environment, since they were last asked for: sums over finished episodes, how many, and how many were lost."""

    returns: np.ndarray
    lengths: np.ndarray
    finished: np.ndarray
    dropped: np.ndarray
    """Episodes given up because their environment failed and was started again."""


class Pool(Protocol):
    """Environments that are running.

    A pool may also have `overdue()`, the error for an environment that does not answer if there is one, asked while it
    is being stepped; and `picture()`, what its first environment looks like.
    """

    def reset(self) -> Any:
        """The first observations."""
        ...

    def step(self, action: Any, last: np.ndarray | None) -> Stepped:
        """Step every environment once; where `last` holds, the episode is truncated by this step if it goes on."""
        ...

    def episodes(self) -> Totals:
        """Take out the statistics of episodes finished since the last call."""
        ...

    def close(self) -> None:
        """End them all; closing twice is harmless."""
        ...


class Game(Protocol):
    """What is played: a value from which pools are made."""

    @property
    def name(self) -> str: ...
    @property
    def observation_space(self) -> gym.Space: ...
    @property
    def action_space(self) -> gym.Space: ...
    def pool(self, indices: Sequence[int], seeds: Sequence[int]) -> Pool:
        """Environments of the given numbers (for messages) and seeds."""
        ...
