"""The trained parameters of a run: its network, and the statistics that its environments gather in training.

Normalised observations mean something only together with the statistics that normalised them, so a saved policy needs
both. Environment statistics are recognised by shape: a leaf of the environments' state is a statistic if its shape does
not depend on the number of environments.
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
class TrainedParams:
    """A network, and the environment's state with None for every leaf that is not a statistic."""

    net: Any
    env_statistics: Any

    def save(self, path: Path) -> None:
        save_params(path, self.net, more={"env": self.env_statistics})


class TrainedParamsSchema:
    """Finds the trained parameters in an algorithm's state: by convention in `state.net` and `state.env`.

    If the state is a dictionary, in its entries of these names."""

    def __init__(self, algo: Algorithm, env_of: Callable[[int], Env]):
        one, two = (_state_shapes(algo, env_of, num_envs) for num_envs in (1, 2))
        envs = part_of(one, "env"), part_of(two, "env")
        self._is_statistic = jax.tree.map(lambda small, large: small.shape == large.shape, *envs)
        self.shapes = self.extract(one)

    def extract(self, state: Any) -> TrainedParams:
        """Returns the trained parameters in a state."""
        env = part_of(state, "env")
        select = jax.tree.map(lambda leaf, statistic: leaf if statistic else None, env, self._is_statistic)
        return TrainedParams(part_of(state, "net"), select)

    def load(self, path: Path) -> TrainedParams:
        """Returns the trained parameters that a run saved."""
        net, env = load_params(path, self.shapes.net), load_params(path, self.shapes.env_statistics, name="env")
        return TrainedParams(net, env)


def set_env_statistics(state: Any, statistics: Any) -> Any:
    """Returns an environment's state with its statistics replaced by the given ones."""
    return jax.tree.map(
        lambda new, old: old if new is None else new, statistics, state, is_leaf=lambda leaf: leaf is None
    )


def save_trained_params(path: Path, algo: Algorithm, env_of: Callable[[int], Env], state: Any) -> None:
    """Save the trained parameters in a state; `state.net` or the whole state if it does not follow the convention."""
    if has_part(state, "net") and has_part(state, "env"):
        TrainedParamsSchema(algo, env_of).extract(state).save(path)
    else:
        save_params(path, part_of(state, "net") if has_part(state, "net") else state)


def has_part(state: Any, name: str) -> bool:
    return name in state if isinstance(state, dict) else hasattr(state, name)


def part_of(state: Any, name: str) -> Any:
    """A field of the state, or an entry if the state is a dictionary."""
    return state[name] if isinstance(state, dict) else getattr(state, name)


def _state_shapes(algo: Algorithm, env_of: Callable[[int], Env], num_envs: int) -> Any:
    state = jax.eval_shape(lambda key: algo.init(env_of(num_envs), key), jax.eval_shape(lambda: jax.random.key(0)))
    for field in ("net", "env"):
        if not has_part(state, field):
            raise WeftError(
                f"{type(algo).__name__} cannot be evaluated: its state has no field {field!r}; keep the network in "
                "state.net and the environments' state in state.env"
            )
    return state
