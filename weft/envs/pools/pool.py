"""The interface of pools: several host environments, in plain Python and NumPy, that are stepped together.

A `PoolFactory` makes pools of one environment. It is a value (hashable, equal if it makes the same environments),
because it is part of a traced program. A `Pool` holds running environments. `weft.envs.adapters.host` turns a pool
factory into an `Env`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import gymnasium as gym
import numpy as np


@dataclass(frozen=True)
class PoolStep:
    """One step of every environment of a pool: the fields of a `TimeStep`, as NumPy arrays that are never modified."""

    obs: Any
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    final_obs: Any
    """May be the same arrays as `obs` if no episode ended."""
    valid: np.ndarray


@dataclass(frozen=True)
class EpisodeTotals:
    """Per environment, since the last call: sums over finished episodes, and counts of finished and dropped ones."""

    returns: np.ndarray
    lengths: np.ndarray
    finished: np.ndarray
    dropped: np.ndarray
    """Episodes discarded because their environment failed and was restarted."""


class Pool(Protocol):
    """Running environments, one per row.

    A pool may define two more methods. `overdue()` returns the error for an environment that does not respond, or None;
    another thread calls it during a step. `render()` returns an image of the first environment.
    """

    def reset(self) -> Any:
        """Starts every environment and returns the first observations."""
        ...

    def step(self, action: Any, last: np.ndarray | None) -> PoolStep:
        """Steps every environment once. Where `last` is true, the step truncates an episode that does not terminate."""
        ...

    def pop_totals(self) -> EpisodeTotals:
        """Returns the statistics of episodes finished since the last call, and resets them."""
        ...

    def close(self) -> None:
        """Closes every environment. Idempotent."""
        ...


class PoolFactory(Protocol):
    """Makes pools of one environment."""

    @property
    def name(self) -> str: ...
    @property
    def observation_space(self) -> gym.Space: ...
    @property
    def action_space(self) -> gym.Space: ...
    def make_pool(self, indices: Sequence[int], seeds: Sequence[int]) -> Pool:
        """Returns a pool with one environment per seed; `indices` number the environments in error messages."""
        ...


def frozen(array: np.ndarray) -> np.ndarray:
    """Makes an array read-only, so that it can be returned from many steps, and returns it."""
    array.flags.writeable = False
    return array
