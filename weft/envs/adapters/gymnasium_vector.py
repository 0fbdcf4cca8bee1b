"""Gymnasium's vector environments as engines of a pool: `sync`, `async`, and what an id brings along (`native`).

A native vector environment often draws all its rows from one stream of random numbers: it then gets one seed made from
all of them, and a row is not the same in a pool of another size.

Unless told otherwise the first two do not restart episodes by themselves: in Gymnasium's `same_step` mode the last
observation is lost if an environment writes over the array that it gave.
"""

import contextlib
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from weft.envs.adapters.gymnasium_constructor import Source
from weft.envs.pools.failures import EnvFailed
from weft.envs.pools.options import AUTORESET
from weft.errors import WeftError

MODES = {
    "next_step": AutoresetMode.NEXT_STEP,
    "same_step": AutoresetMode.SAME_STEP,
    "disabled": AutoresetMode.DISABLED,
}


class GymVector:
    """A vector environment of Gymnasium's kind."""

    def __init__(self, name: str, vector: Any, *, autoreset: str, restarts: bool, timeout: float) -> None:
        self._name, self._vector, self._restarts, self._timeout = name, vector, restarts, timeout
        self.autoreset = autoreset
        self._closed = False

    def reset(self, seeds: Sequence[int]) -> tuple[Any, dict[str, Any]]:
        try:
            return self._vector.reset(seed=list(seeds))
        except (gym.error.Error, TypeError, ValueError):
            if self._restarts:
                raise
            # Knows no seeds of single rows.
            return self._vector.reset(seed=int(np.random.SeedSequence(seeds).generate_state(1)[0] >> 1))

    def step(self, action: Any) -> Any:
        if isinstance(self._vector, AsyncVectorEnv):
            self._vector.step_async(action)
            return self._vector.step_wait(self._timeout)
        return self._vector.step(action)

    def restart(self, rows: np.ndarray) -> tuple[Any, dict[str, Any]]:
        if not self._restarts:
            raise WeftError(
                f"{self._name} cannot cut an episode off: its own vector environment cannot reset single rows; "
                "use vector=inprocess or vector=workers"
            )
        obs, info = self._vector.reset(options={"reset_mask": rows.copy()})
        return _chosen(obs, rows), info

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        with warnings.catch_warnings(), contextlib.suppress(Exception):
            warnings.simplefilter("ignore")
            if isinstance(self._vector, AsyncVectorEnv):
                self._vector.close(terminate=True)
            else:
                self._vector.close()


def engine(kind: str, source: Source, num_envs: int, *, autoreset: str | None, timeout: float) -> GymVector:
    """The vector environment of a kind."""
    try:
        return ENGINES[kind](source, num_envs, autoreset, timeout)
    except WeftError:
        raise
    except Exception as error:
        raise EnvFailed(f"{source.name} cannot be made: {type(error).__name__}: {error}") from error


def sync(source: Source, num_envs: int, autoreset: str | None, timeout: float) -> GymVector:
    """Gymnasium's environments in one process."""
    mode = autoreset or "disabled"
    vector = SyncVectorEnv([source.factory()] * num_envs, autoreset_mode=MODES[mode])
    return GymVector(source.name, vector, autoreset=mode, restarts=True, timeout=timeout)


def processes(source: Source, num_envs: int, autoreset: str | None, timeout: float) -> GymVector:
    """Gymnasium's environments in one process each; new processes, as a fork would not survive XLA's threads.

    Python's own way of starting them imports the program's main script once more: it must guard what it does.
    """
    mode = autoreset or "disabled"
    vector = AsyncVectorEnv([source.factory()] * num_envs, autoreset_mode=MODES[mode], context="spawn")
    return GymVector(source.name, vector, autoreset=mode, restarts=True, timeout=timeout)


def native(source: Source, num_envs: int, autoreset: str | None, timeout: float) -> GymVector:
    """The vector environment that an id brings along."""
    arguments = dict(source.arguments.items)
    if not isinstance(source.maker, str) or gym.spec(source.maker).vector_entry_point is None:
        raise WeftError(f"{source.name} brings no vector environment of its own: use vector=workers")
    vector = gym.make_vec(source.maker, num_envs, vectorization_mode="vector_entry_point", **arguments)
    own = next(name for name in AUTORESET if MODES[name] is vector.metadata.get("autoreset_mode", MODES["next_step"]))
    if autoreset not in (None, own):
        vector.close()
        raise WeftError(f"{source.name} restarts episodes in its own way: autoreset can only be {own}, not {autoreset}")
    return GymVector(source.name, vector, autoreset=own, restarts=False, timeout=timeout)


ENGINES: dict[str, Callable[[Source, int, str | None, float], GymVector]] = {
    "sync": sync,
    "async": processes,
    "native": native,
}


def _chosen(obs: Any, rows: np.ndarray) -> Any:
    if isinstance(obs, dict):
        return {name: _chosen(part, rows) for name, part in obs.items()}
    if isinstance(obs, tuple):
        return tuple(_chosen(part, rows) for part in obs)
    return np.asarray(obs)[rows]
