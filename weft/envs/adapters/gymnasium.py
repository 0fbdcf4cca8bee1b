"""Gymnasium environments, by id or of the user's own: plain Python, run in this process or in worker processes.

Whatever is not an option of the pool (`Options`) is an argument of the environment:

>>> import numpy as np
>>> game = make("FrozenLake-v1", 4, vector="inprocess", is_slippery=False).game
>>> game.observation_space, game.action_space
(Discrete(16), Discrete(4))
>>> pool = game.pool(indices=range(2), seeds=[1, 2])
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
from weft.envs.adapters import gymnasium_constructor as source
from weft.envs.adapters.gymnasium_constructor import Source
from weft.envs.adapters.gymnasium_vector import engine
from weft.envs.adapters.host import HostEnv
from weft.envs.pools.in_process_pool import InProcess
from weft.envs.pools.kinds import choose_kind, worker_count
from weft.envs.pools.options import Options
from weft.envs.pools.pool import Pool
from weft.envs.pools.vector_pool import VectorPool
from weft.envs.pools.worker_pool import Workers

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
class GymGame:
    """Environments of one source, run in one way."""

    source: Source
    options: Options

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def observation_space(self) -> gym.Space:
        return self.source.observation_space

    @property
    def action_space(self) -> gym.Space:
        return self.source.action_space

    @property
    def rendering(self) -> dict[str, Any]:
        """The options with which environments can be filmed."""
        return {"vector": "inprocess", "render_mode": "rgb_array"}

    def pool(self, indices: Sequence[int], seeds: Sequence[int]) -> Pool:
        kind, restart = choose_kind(self.source, self.options, len(seeds)), self.options.on_error == "restart"
        common: dict[str, Any] = {
            "observation_space": self.observation_space,
            "action_space": self.action_space,
            "indices": indices,
            "seeds": seeds,
            "masked": self.source.masked,
        }
        if kind == "inprocess":
            return InProcess(self.name, self.source.factory(), **common, restart=restart, timeout=self.options.timeout)
        if kind == "workers":
            how = {
                "restart": restart,
                "workers": worker_count(self.options, len(seeds)),
                "timeout": self.options.timeout,
            }
            return Workers(self.name, self.source.factory(), **common, **how)
        how = {"autoreset": self.options.autoreset, "timeout": self.options.timeout}
        return VectorPool(self.name, engine(kind, self.source, len(seeds), **how), kind=kind, **common)


def make(env_id: str, num_envs: int, **options: Any) -> HostEnv:
    """`num_envs` environments of a Gymnasium id; those of Atari games are made by `atari`, with its settings."""
    if env_id.startswith(atari.PREFIX):
        return atari.make(env_id, num_envs, **options)
    mine, arguments = Options.taken(options)
    return _env(source.registered(env_id, arguments), num_envs, mine)


def make_custom(given: str | Callable[..., gym.Env], num_envs: int, **options: Any) -> HostEnv:
    """`num_envs` environments of a subclass of `gymnasium.Env`, a function that makes one, or `module:attribute`."""
    mine, arguments = Options.taken(options)
    return _env(source.own(given, arguments), num_envs, mine)


def available() -> dict[str, str]:
    """The newest version of every environment registered with Gymnasium, with one line about each."""
    games = atari.available()
    newest = [spec for spec in gym.registry.values() if spec.version == _newest_version(spec)]
    real = [spec for spec in newest if not _left_out(spec.entry_point)]
    lines = {spec.id: DESCRIPTIONS.get(spec.id.rpartition("-v")[0], "registered with Gymnasium") for spec in real}
    return lines | games


def _left_out(entry_point: Any) -> bool:
    """Some ids only tell how to get the package that once had them, and the emulator has old ones of every game."""
    return getattr(entry_point, "__name__", str(entry_point)).startswith(("_raise", "ale_py"))


def _newest_version(spec: registration.EnvSpec) -> int | None:
    return registration.find_highest_version(spec.namespace, spec.name)


def _env(made_by: Source, num_envs: int, options: Options) -> HostEnv:
    game = GymGame(made_by, options)
    # Found out now: whoever asked for it is told at once what is wrong with it.
    _ = game.observation_space
    return HostEnv(game, num_envs)
