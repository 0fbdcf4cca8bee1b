"""An algorithm: a frozen dataclass of settings with `init` and `step`, one iteration of one sequential training loop.

`init(env, key)` returns the state, a pytree of arrays. `step(env, state)` returns the next state and metrics, a
dictionary of `Mean` pairs. Neither names a device, a process or a queue. By convention `state.net` (or
`state["net"]`) holds the trained parameters, which a run saves.

An algorithm that has to collect experience before it can learn has a warm-up: `warm_up_iterations` calls of `warm_up`,
which has the signature of `step`, come before the first `step`. Layouts project both alike.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import jax

from weft.envs.timestep import Env
from weft.errors import WeftError
from weft.metrics import Mean

Phase = Literal["warm_up", "step"]
Play = Callable[[Any, Any, jax.Array, jax.Array], tuple[Any, Any]]
"""`play(memory, obs, start, key)` returns the next memory and actions; `start` is where an episode starts, [B]."""


@dataclass(frozen=True, kw_only=True)
class Algorithm(ABC):
    """Settings and one training loop; subclasses add fields and define `init` and `step`."""

    num_envs: int = 16
    """Environments in all, divided between the replicas."""

    @abstractmethod
    def init(self, env: Env, key: jax.Array) -> Any:
        """The state before the first iteration."""

    def player(self, env: Env, net: Any, *, greedy: bool) -> tuple[Any, Play]:
        """The policy for evaluation: the memory at the start, and a function that acts.

        It takes the most likely actions if `greedy`, else it samples as in training.
        """
        raise WeftError(f"{type(self).__name__} cannot be evaluated: define its method `player`")

    def resolve(self, *, asynchronous: bool) -> "Algorithm":
        """The algorithm with its `auto` settings decided; `asynchronous` says whether the layout has lanes."""
        del asynchronous
        return self

    @property
    def warm_up_iterations(self) -> int:
        """Iterations of `warm_up` before the first `step`."""
        return 0

    def warm_up(self, env: Env, state: Any) -> tuple[Any, dict[str, Mean]]:
        """One iteration of the warm-up: as many environment steps as `step` takes, and the same structure of state."""
        raise WeftError(
            f"{type(self).__name__} has {self.warm_up_iterations} warm-up iterations but no method `warm_up`: define it"
        )

    @property
    def steps_per_iteration(self) -> int | None:
        """The steps that one iteration counts; None counts environment steps."""
        return None

    @abstractmethod
    def step(self, env: Env, state: Any) -> tuple[Any, dict[str, Mean]]:
        """One iteration: the next state, and metrics."""


def name_of(algo: Algorithm) -> str:
    """The algorithm's name on the command line: `discrete_sac` for DiscreteSAC."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(algo).__name__).lower()
