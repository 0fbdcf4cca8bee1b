"""An algorithm: a frozen dataclass of settings with `init` and `step`, one iteration of one sequential training loop.

`init(env, key)` gives the state, a pytree of arrays; `step(env, state)` gives the next state and metrics, a dictionary
of `Mean` pairs. Neither names a device, a process or a queue. By convention `state.net` holds what is trained: it is
what a run saves as its parameters.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import jax

from weft.envs.timestep import Env
from weft.metrics import Mean


@dataclass(frozen=True, kw_only=True)
class Algorithm(ABC):
    """Settings and one training loop; subclasses add fields and define `init` and `step`."""

    num_envs: int = 16
    """Environments in all, shared out over replicas."""

    @abstractmethod
    def init(self, env: Env, key: jax.Array) -> Any:
        """The state before the first iteration."""

    @abstractmethod
    def step(self, env: Env, state: Any) -> tuple[Any, dict[str, Mean]]:
        """One iteration: the next state, and what was measured."""
