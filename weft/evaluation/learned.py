"""What a run has learned: its network, and what its environments know.

Normalised observations mean something only together with the statistics they were normalised with, so these belong to
what was learned. They are found without being declared: of all that an environment keeps, what does not grow with the
number of environments is knowledge, shared by all of them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from weft.algorithm import Algorithm
from weft.envs.timestep import Env
from weft.errors import WeftError
from weft.report.params import load_params, save_params


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Learned:
    """A network, and the leaves of an environment's state that are knowledge; the others are None."""

    net: Any
    env: Any

    def save(self, path: Path) -> None:
        save_params(path, self.net, more={"env": self.env})


class Learning:
    """What an algorithm learns in its environments; by convention it is in `state.net` and `state.env`."""

    def __init__(self, algo: Algorithm, env_of: Callable[[int], Env]):
        one, two = (_shapes(algo, env_of, count) for count in (1, 2))
        self._known = jax.tree.map(lambda small, large: small.shape == large.shape, one.env, two.env)
        self.shapes = self.of(one)

    def of(self, state: Any) -> Learned:
        """What a state holds of it."""
        return Learned(state.net, jax.tree.map(lambda leaf, known: leaf if known else None, state.env, self._known))

    def load(self, path: Path) -> Learned:
        """What a run saved of it."""
        return Learned(load_params(path, self.shapes.net), load_params(path, self.shapes.env, name="env"))


def teach(state: Any, knowledge: Any) -> Any:
    """An environment's state with the given knowledge in place of its own."""
    return jax.tree.map(
        lambda known, own: own if known is None else known, knowledge, state, is_leaf=lambda leaf: leaf is None
    )


def save_state(path: Path, algo: Algorithm, env_of: Callable[[int], Env], state: Any) -> None:
    """What a state has learned; all of it, if it does not say what that is."""
    if hasattr(state, "net") and hasattr(state, "env"):
        Learning(algo, env_of).of(state).save(path)
    else:
        save_params(path, getattr(state, "net", state))


def _shapes(algo: Algorithm, env_of: Callable[[int], Env], num_envs: int) -> Any:
    """The shapes of the algorithm's state with some number of environments."""
    state = jax.eval_shape(lambda key: algo.init(env_of(num_envs), key), jax.eval_shape(lambda: jax.random.key(0)))
    for field in ("net", "env"):
        if not hasattr(state, field):
            raise WeftError(
                f"{type(algo).__name__} cannot be evaluated: its state has no field {field!r}; keep what it learns in "
                "state.net and its environments in state.env"
            )
    return state
