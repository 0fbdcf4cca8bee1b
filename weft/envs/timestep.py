"""What every environment gives, whatever it was made with.

An `Env` is a batch of `num_envs` environments with three methods. `step` is a fragment named `env` and `episodes` one
named `env.episodes`, so a layout places an environment like anything else. Episodes restart by themselves; statistics
of finished episodes gather in the environment's state until `episodes` takes them out.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import gymnasium as gym
import jax

from weft.metrics import Mean


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TimeStep:
    """The result of one step of `num_envs` environments; every leaf leads with that axis.

    `obs` is what to act on next: after an end it is the first observation of the next episode, and `final_obs` is the
    last one of the episode that ended (equal to `obs` elsewhere). Truncation bootstraps from `final_obs`; termination
    wins where both are set. Rows with `valid` false were inserted by an autoreset: never learned from, never counted.
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
        """Start every environment: its state and the first observations."""
        ...

    def step(self, state: Any, action: Any, key: jax.Array, last: jax.Array | None = None) -> tuple[Any, TimeStep]:
        """Step every environment once. A fragment named `env`.

        Where `last` holds the step is the last of its episode: truncated there, if it does not terminate.
        """
        ...

    def episodes(self, state: Any) -> tuple[Any, dict[str, Mean]]:
        """Take out the statistics of the episodes finished since the last call. A fragment named `env.episodes`."""
        ...
