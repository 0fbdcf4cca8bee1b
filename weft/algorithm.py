"""An algorithm: a frozen dataclass of settings with `init` and `step`, one iteration of one sequential training loop.

`init(env, key)` gives the state, a pytree of arrays; `step(env, state)` gives the next state and metrics, a dictionary
of `Mean` pairs. Neither names a device, a process or a queue. By convention `state.net` holds what is trained: it is
what a run saves as its parameters.

An algorithm that has to collect before it can learn has a *warm-up*: so many iterations of `warm_up`, which is like
`step`, come before the first of `step`. A layout projects one like the other.
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


@dataclass(frozen=True, kw_only=True)
class Algorithm(ABC):
    """Settings and one training loop; subclasses add fields and define `init` and `step`."""

    num_envs: int = 16
    """Environments in all, shared out over replicas."""

    @abstractmethod
    def init(self, env: Env, key: jax.Array) -> Any:
        """The state before the first iteration."""

    def player(self, env: Env, net: Any, *, greedy: bool) -> tuple[Any, Play]:
        """How to play with a trained `state.net`, for evaluation: a memory to start from, and a function to act by.

        The function takes the memory, observations, where an episode starts, and a key; it gives the next memory and
        actions: the likeliest if `greedy`, else drawn as in training.
        """
        raise WeftError(f"{type(self).__name__} does not say how to play what it learned: define its method `player`")

    def settle(self, *, asynchronous: bool) -> "Algorithm":
        """The same, with the settings decided that are left to weft (`auto`); `asynchronous` says whether parts of it
        go on without waiting for each other."""
        del asynchronous
        return self

    @property
    def warm_up_iterations(self) -> int:
        """How many iterations of `warm_up` come first."""
        return 0

    def warm_up(self, env: Env, state: Any) -> tuple[Any, dict[str, Mean]]:
        """One iteration of the warm-up: as many environment steps as `step` takes, and the same state."""
        raise WeftError(
            f"{type(self).__name__} has {self.warm_up_iterations} iterations of warm-up and does not say what one is: "
            "define its method `warm_up`"
        )

    @property
    def steps_per_iteration(self) -> int | None:
        """What counts as the steps of an iteration, in all; None counts those of the environments."""
        return None

    @abstractmethod
    def step(self, env: Env, state: Any) -> tuple[Any, dict[str, Mean]]:
        """One iteration: the next state, and what was measured."""


def name_of(algo: Algorithm) -> str:
    """The name that an algorithm goes by: `discrete_sac` for DiscreteSAC."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(algo).__name__).lower()
