"""The interface of environments: `Env` and `TimeStep`.

An `Env` is a batch of `num_envs` environments with three methods. `step` is a fragment named `env`, and `episodes` a
fragment named `env.episodes`, so a layout can place them. Episodes restart automatically. The environment's state
collects statistics of finished episodes until `episodes` returns them.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import gymnasium as gym
import jax

from weft.metrics import Mean


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TimeStep:
    """The result of one step of `num_envs` environments, the first axis of every leaf.

    `obs` is the observation to act on next. If the step ends an episode, `obs` is the first observation of the next
    episode and `final_obs` the last one of the episode that ended; otherwise they are equal. Bootstrap from `final_obs`
    at a truncation. `terminated` and `truncated` are never both true. A row with `valid` false belongs to no episode,
    because an autoreset inserted it: it must not be learned from or counted.
    """

    obs: Any
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    final_obs: Any
    valid: jax.Array


class Env(Protocol):
    """A batch of environments."""

    @property
    def num_envs(self) -> int: ...
    @property
    def observation_space(self) -> gym.Space: ...
    @property
    def action_space(self) -> gym.Space: ...

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        """Starts every environment. Returns the state and the first observations."""
        ...

    def step(self, state: Any, action: Any, key: jax.Array, last: jax.Array | None = None) -> tuple[Any, TimeStep]:
        """Steps every environment once. A fragment named `env`.

        `last`, bool [B], forces the end of episodes: where it is true, the step truncates an episode that does not
        terminate.
        """
        ...

    def episodes(self, state: Any) -> tuple[Any, dict[str, Mean]]:
        """Returns metrics of the episodes finished since the last call, and resets them. A fragment `env.episodes`."""
        ...
