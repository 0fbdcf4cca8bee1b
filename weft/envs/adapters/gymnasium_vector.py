"""Gymnasium's vector environments, for pools of the kinds `sync`, `async` and `native`.

`native` is the vector environment that is registered with an id. It often draws all rows from one random stream: it
then gets one seed derived from all of them, and the trajectory of a row depends on the number of rows.

The default autoreset mode of `sync` and `async` is `disabled`: in Gymnasium's `same_step` mode the last observation is
lost if an environment overwrites the array that it returned.
"""

import contextlib
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from weft.envs.adapters.gymnasium_constructor import GymConstructor
from weft.envs.pools.failures import EnvFailed
from weft.envs.pools.options import AUTORESET
from weft.errors import WeftError

MODES = {
    "next_step": AutoresetMode.NEXT_STEP,
    "same_step": AutoresetMode.SAME_STEP,
    "disabled": AutoresetMode.DISABLED,
}


class GymVectorEnv:
    """A vector environment with Gymnasium's interface."""

    def __init__(self, name: str, vector_env: Any, *, autoreset: str, resets_rows: bool, timeout: float) -> None:
        self._name, self._vector_env, self._timeout = name, vector_env, timeout
        self._resets_rows = resets_rows
        """Whether single rows can be seeded and reset."""
        self.autoreset = autoreset
        self._closed = False

    def reset(self, seeds: Sequence[int]) -> tuple[Any, dict[str, Any]]:
        try:
            return self._vector_env.reset(seed=list(seeds))
        except (gym.error.Error, TypeError, ValueError):
            if self._resets_rows:
                raise
            # It takes one seed for all rows.
            return self._vector_env.reset(seed=int(np.random.SeedSequence(seeds).generate_state(1)[0] >> 1))

    def step(self, action: Any) -> Any:
        if isinstance(self._vector_env, AsyncVectorEnv):
            self._vector_env.step_async(action)
            return self._vector_env.step_wait(self._timeout)
        return self._vector_env.step(action)

    def restart(self, rows: np.ndarray) -> tuple[Any, dict[str, Any]]:
        if not self._resets_rows:
            raise WeftError(
                f"{self._name} cannot truncate an episode: its own vector environment cannot reset single rows; "
                "use vector=inprocess or vector=workers"
            )
        obs, info = self._vector_env.reset(options={"reset_mask": rows.copy()})
        return _select_rows(obs, rows), info

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        with warnings.catch_warnings(), contextlib.suppress(Exception):
            warnings.simplefilter("ignore")
            if isinstance(self._vector_env, AsyncVectorEnv):
                self._vector_env.close(terminate=True)
            else:
                self._vector_env.close()


def make_vector_env(
    kind: str, constructor: GymConstructor, num_envs: int, *, autoreset: str | None, timeout: float
) -> GymVectorEnv:
    """Returns the vector environment for a kind of pool: `sync`, `async` or `native`."""
    try:
        return _MAKERS[kind](constructor, num_envs, autoreset, timeout)
    except WeftError:
        raise
    except Exception as error:
        raise EnvFailed(f"{constructor.name} cannot be made: {type(error).__name__}: {error}") from error


def _make_sync(constructor: GymConstructor, num_envs: int, autoreset: str | None, timeout: float) -> GymVectorEnv:
    """Gymnasium's environments in one process."""
    mode = autoreset or "disabled"
    vector_env = SyncVectorEnv([constructor.factory()] * num_envs, autoreset_mode=MODES[mode])
    return GymVectorEnv(constructor.name, vector_env, autoreset=mode, resets_rows=True, timeout=timeout)


def _make_async(constructor: GymConstructor, num_envs: int, autoreset: str | None, timeout: float) -> GymVectorEnv:
    """Gymnasium's environments in one process each, spawned: a fork could deadlock on locks that XLA's threads hold.

    A spawned process imports the program's main script again, so the script needs `if __name__ == "__main__"`.
    """
    mode = autoreset or "disabled"
    vector_env = AsyncVectorEnv([constructor.factory()] * num_envs, autoreset_mode=MODES[mode], context="spawn")
    return GymVectorEnv(constructor.name, vector_env, autoreset=mode, resets_rows=True, timeout=timeout)


def _make_native(constructor: GymConstructor, num_envs: int, autoreset: str | None, timeout: float) -> GymVectorEnv:
    """The vector environment that is registered with the id."""
    name, env_id, arguments = constructor.name, constructor.target, dict(constructor.arguments.items)
    if not isinstance(env_id, str) or gym.spec(env_id).vector_entry_point is None:
        raise WeftError(f"{name} has no vector environment of its own: use vector=workers")
    vector_env = gym.make_vec(env_id, num_envs, vectorization_mode="vector_entry_point", **arguments)
    own_mode = vector_env.metadata.get("autoreset_mode", MODES["next_step"])
    own = next(mode for mode in AUTORESET if MODES[mode] is own_mode)
    if autoreset not in (None, own):
        vector_env.close()
        raise WeftError(f"the vector environment of {name} supports only autoreset={own}, not {autoreset}")
    return GymVectorEnv(name, vector_env, autoreset=own, resets_rows=False, timeout=timeout)


_MAKERS: dict[str, Callable[[GymConstructor, int, str | None, float], GymVectorEnv]] = {
    "sync": _make_sync,
    "async": _make_async,
    "native": _make_native,
}


def _select_rows(obs: Any, rows: np.ndarray) -> Any:
    if isinstance(obs, dict):
        return {name: _select_rows(part, rows) for name, part in obs.items()}
    if isinstance(obs, tuple):
        return tuple(_select_rows(part, rows) for part in obs)
    return np.asarray(obs)[rows]
