"""Gymnasium environments, by registered id or of the user's own: plain Python, stepped in one or several processes.

An option that is not an option of the pool (`PoolOptions`) is an argument of the environment:

>>> import numpy as np
>>> factory = make("FrozenLake-v1", 4, vector="inprocess", is_slippery=False).pool_factory
>>> factory.observation_space, factory.action_space
(Discrete(16), Discrete(4))
>>> pool = factory.make_pool(indices=range(2), seeds=[1, 2])
>>> pool.reset().tolist(), pool.step(np.array([1, 2]), None).obs.tolist()
([0, 0], [4, 1])
>>> pool.close()
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
from gymnasium.envs import registration

from weft.envs.adapters import atari
from weft.envs.adapters.gymnasium_constructor import GymConstructor, from_callable, from_id
from weft.envs.adapters.gymnasium_vector import make_vector_env
from weft.envs.adapters.host import HostEnv
from weft.envs.pools.in_process_pool import InProcessPool
from weft.envs.pools.kinds import choose_kind, worker_count
from weft.envs.pools.options import PoolOptions
from weft.envs.pools.pool import Pool
from weft.envs.pools.vector_pool import VectorPool
from weft.envs.pools.worker_pool import WorkerPool

DESCRIPTIONS = {
    "CartPole": "balance a pole on a cart; 500 steps at most",
    "MountainCar": "rock a weak car out of a valley",
    "MountainCarContinuous": "rock a weak car out of a valley; continuous force",
    "Pendulum": "swing a pendulum up and hold it; continuous torque, 200 steps",
    "Acrobot": "swing the tip of two joined links above a line",
    "phys2d/CartPole": "CartPole written in JAX",
    "phys2d/Pendulum": "Pendulum written in JAX",
    "LunarLander": "land between two flags",
    "LunarLanderContinuous": "land between two flags; continuous engines",
    "BipedalWalker": "walk on two legs over slight hills; continuous",
    "BipedalWalkerHardcore": "walk on two legs over ladders, stumps and pits; continuous",
    "CarRacing": "drive round a race track, from 96x96 images; continuous",
    "Blackjack": "twist or stick",
    "FrozenLake": "cross a slippery frozen lake",
    "FrozenLake8x8": "cross a larger slippery frozen lake",
    "CliffWalking": "walk along a cliff",
    "CliffWalkingSlippery": "walk along a cliff on slippery ground",
    "Taxi": "fetch a passenger and bring them where they want; masks actions",
    "tabular/Blackjack": "Blackjack written in JAX",
    "tabular/CliffWalking": "CliffWalking written in JAX",
    "Reacher": "reach a point with a two-joint arm; MuJoCo",
    "Pusher": "push a cylinder to a goal with an arm; MuJoCo",
    "InvertedPendulum": "balance a pole on a cart; MuJoCo",
    "InvertedDoublePendulum": "balance two joined poles on a cart; MuJoCo",
    "HalfCheetah": "run with two legs in a plane; MuJoCo",
    "Hopper": "hop on one leg; MuJoCo",
    "Swimmer": "swim with three links; MuJoCo",
    "Walker2d": "walk on two legs in a plane; MuJoCo",
    "Ant": "walk on four legs; MuJoCo",
    "Humanoid": "walk like a human; MuJoCo",
    "HumanoidStandup": "stand up like a human; MuJoCo",
}


@dataclass(frozen=True)
class GymPoolFactory:
    """Makes pools of one Gymnasium environment."""

    constructor: GymConstructor
    options: PoolOptions

    @property
    def name(self) -> str:
        return self.constructor.name

    @property
    def observation_space(self) -> gym.Space:
        return self.constructor.observation_space

    @property
    def action_space(self) -> gym.Space:
        return self.constructor.action_space

    @property
    def render_options(self) -> dict[str, Any]:
        """The options with which the environments render images."""
        return {"vector": "inprocess", "render_mode": "rgb_array"}

    def make_pool(self, indices: Sequence[int], seeds: Sequence[int]) -> Pool:
        kind = choose_kind(self.constructor, self.options, len(seeds))
        restart, timeout = self.options.on_error == "restart", self.options.timeout
        common: dict[str, Any] = {
            "observation_space": self.observation_space,
            "action_space": self.action_space,
            "indices": indices,
            "seeds": seeds,
            "masked": self.constructor.masked,
        }
        if kind == "inprocess":
            return InProcessPool(self.name, self.constructor.factory(), **common, restart=restart, timeout=timeout)
        if kind == "workers":
            how = {"restart": restart, "timeout": timeout, "workers": worker_count(self.options, len(seeds))}
            return WorkerPool(self.name, self.constructor.factory(), **common, **how)
        how = {"autoreset": self.options.autoreset, "timeout": timeout}
        vector_env = make_vector_env(kind, self.constructor, len(seeds), **how)
        return VectorPool(self.name, vector_env, kind=kind, **common)


def make(env_id: str, num_envs: int, **options: Any) -> HostEnv:
    """Returns `num_envs` environments of a Gymnasium id. The module `atari` makes Atari games, with other options."""
    if env_id.startswith(atari.PREFIX):
        return atari.make(env_id, num_envs, **options)
    pool_options, arguments = PoolOptions.split(options)
    return _env(from_id(env_id, arguments), num_envs, pool_options)


def make_custom(spec: str | Callable[..., gym.Env], num_envs: int, **options: Any) -> HostEnv:
    """Returns `num_envs` environments of a class or function of the user's own.

    `spec` is a subclass of `gymnasium.Env`, a function that makes one, or `module:attribute` for either.
    """
    pool_options, arguments = PoolOptions.split(options)
    return _env(from_callable(spec, arguments), num_envs, pool_options)


def available() -> dict[str, str]:
    """Returns the newest version of every environment registered with Gymnasium, with a one-line description."""
    games = atari.available()
    newest = [spec for spec in gym.registry.values() if spec.version == _newest_version(spec)]
    listed = [spec for spec in newest if not _is_excluded(spec.entry_point)]
    lines = {spec.id: DESCRIPTIONS.get(spec.id.rpartition("-v")[0], "registered with Gymnasium") for spec in listed}
    return lines | games


def _is_excluded(entry_point: Any) -> bool:
    """Excludes ids that only raise an error with advice, and the old ids of Atari games."""
    return getattr(entry_point, "__name__", str(entry_point)).startswith(("_raise", "ale_py"))


def _newest_version(spec: registration.EnvSpec) -> int | None:
    return registration.find_highest_version(spec.namespace, spec.name)


def _env(constructor: GymConstructor, num_envs: int, options: PoolOptions) -> HostEnv:
    pool_factory = GymPoolFactory(constructor, options)
    # Makes one environment now, so that an error is raised here and not in the run.
    _ = pool_factory.observation_space
    return HostEnv(pool_factory, num_envs)
