"""EnvPool environments: written in C++ and stepped together by threads of their own.

Options are those of EnvPool's own configuration. Atari games have the same defaults as in `weft.envs.adapters.atari`.

Two things differ from other adapters. The step after the end of an episode belongs to no episode (it is not `valid`);
`autoreset="same_step"` avoids that, at the cost of a second call in steps where episodes end. A game that terminates in
the very step that reaches its time limit counts as truncated.

>>> env = make("CartPole-v1", 2)
>>> env.observation_space.shape, env.action_space
((4,), Discrete(2))
"""

import functools
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from weft.envs.adapters.atari import Scores
from weft.envs.adapters.gymnasium_constructor import Arguments
from weft.envs.adapters.host import HostEnv
from weft.envs.pools.failures import EnvFailed
from weft.envs.pools.options import one_of
from weft.envs.pools.pool import Pool
from weft.envs.pools.vector_pool import VectorPool
from weft.envs.spaces import map_space
from weft.errors import WeftError, unknown

# Ours to decide, not the user's.
TAKEN = {"num_envs", "batch_size", "seed", "env_seed", "base_path", "gym_reset_return_info", "max_num_players"}
# Scores are told whole and made small afterwards, as are lives.
ATARI = {"clip_reward": True, "life_loss": False}
ATARI_TAKEN = {"reward_clip", "episodic_life", "zero_discount_on_life_loss"}
ATARI_DEFAULTS = {"repeat_action_probability": 0.25}
AUTORESET = ("next_step", "same_step")


@dataclass(frozen=True)
class EnvPoolGame:
    """One of EnvPool's tasks with its configuration."""

    env_id: str
    config: Arguments
    autoreset: str = "next_step"
    scores: Arguments | None = None
    """How an Atari game's scores are learned from."""

    @property
    def name(self) -> str:
        return f"envpool:{self.env_id}"

    @property
    def observation_space(self) -> gym.Space:
        return _spaces(self.env_id, self.config)[0]

    @property
    def action_space(self) -> gym.Space:
        return _spaces(self.env_id, self.config)[1]

    def pool(self, indices: Sequence[int], seeds: Sequence[int]) -> Pool:
        return VectorPool(
            self.name,
            EnvPoolEngine(_made(self.env_id, self.config, seeds), self.autoreset),
            kind="native",
            observation_space=self.observation_space,
            action_space=self.action_space,
            indices=indices,
            seeds=seeds,
            learned=Scores(**dict(self.scores.items)) if self.scores else None,
        )


class EnvPoolEngine:
    """A pool of EnvPool's; its environments were seeded when it was made."""

    def __init__(self, pool: Any, autoreset: str) -> None:
        self._pool: Any = pool
        # It resets what has ended by itself only if nobody else did before the next step.
        self.autoreset = "next_step" if autoreset == "next_step" else "disabled"

    def reset(self, seeds: Sequence[int]) -> tuple[Any, dict[str, Any]]:
        return self._pool.reset()

    def step(self, action: Any) -> Any:
        return self._pool.step(action)

    def restart(self, rows: np.ndarray) -> tuple[Any, dict[str, Any]]:
        return self._pool.reset(np.flatnonzero(rows).astype(np.int32))

    def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()


def make(env_id: str, num_envs: int, **options: Any) -> HostEnv:
    """`num_envs` environments of one of EnvPool's tasks."""
    known = available()
    if not known:
        raise WeftError(f"envpool:{env_id} needs EnvPool: pip install envpool")
    if env_id not in known:
        raise unknown("envpool environment", env_id, known)
    game = _game(env_id, options)
    # Found out now: whoever asked for it is told at once what is wrong with it.
    _ = game.observation_space
    return HostEnv(game, num_envs)


def available() -> dict[str, str]:
    """All of EnvPool's tasks, if it is installed."""
    return {env_id: f"{module.removeprefix('envpool.')}, in C++" for env_id, module in _tasks().items()}


@functools.cache
def _tasks() -> dict[str, str]:
    try:
        from envpool.registration import registry
    except ImportError:
        return {}
    return {env_id: specification[0] for env_id, specification in registry.specs.items()}


def _game(env_id: str, options: Mapping[str, Any]) -> EnvPoolGame:
    atari = _tasks()[env_id] == "envpool.atari"
    scores = {name: options.get(name, value) for name, value in ATARI.items()} if atari else {}
    autoreset = options.get("autoreset", "next_step")
    config = {name: value for name, value in options.items() if name not in scores and name != "autoreset"}
    taken = TAKEN | ATARI_TAKEN if atari else TAKEN
    known = [name for name in _config_names(env_id) if name not in taken]
    for name in config:
        if name not in known:
            raise unknown(f"option of envpool:{env_id}", name, [*known, *scores, "autoreset"])
    if autoreset not in AUTORESET:
        raise WeftError(f"autoreset is {autoreset!r}: it must be {one_of(AUTORESET)}")
    for name, value in scores.items():
        if not isinstance(value, bool):
            raise WeftError(f"{name} is {value!r}: it must be true or false")
    config = ATARI_DEFAULTS | config if atari else config
    return EnvPoolGame(env_id, Arguments.of(config), autoreset, Arguments.of(scores) if atari else None)


@functools.cache
def _config_names(env_id: str) -> tuple[str, ...]:
    import envpool

    return tuple(envpool.make_spec(env_id).config._fields)


@functools.cache
def _spaces(env_id: str, config: Arguments) -> tuple[gym.Space, gym.Space]:
    pool = _made(env_id, config, (0,))
    try:
        observation, action = _mended(pool.observation_space), _mended(pool.action_space)
        players = len(pool.reset()[1]["players"]["env_id"])
    finally:
        pool.close()
    for space in (observation, action):
        map_space(lambda _: None, space)
    if players != 1:
        raise WeftError(f"envpool:{env_id} is a game of {players} players: only those of one can be played")
    return observation, action


def _made(env_id: str, config: Arguments, seeds: Sequence[int]) -> Any:
    import envpool

    try:
        pool = envpool.make_gymnasium(env_id, num_envs=len(seeds), seed=list(seeds), **dict(config.items))
        with warnings.catch_warnings():
            # It writes its bounds down in float64 for an array of float32, when first asked for them.
            warnings.simplefilter("ignore")
            _ = pool.observation_space, pool.action_space
        return pool
    except Exception as error:
        text = " ".join(str(error).split())
        raise EnvFailed(f"envpool:{env_id} cannot be made: {type(error).__name__}: {text}") from error


def _mended(space: gym.Space) -> gym.Space:
    """The same space with no bounds where EnvPool has the least positive and the largest number for none."""
    if isinstance(space, gym.spaces.Dict):
        return gym.spaces.Dict({name: _mended(part) for name, part in space.spaces.items()})
    if isinstance(space, gym.spaces.Box) and np.dtype(space.dtype).kind == "f":
        numbers = np.finfo(space.low.dtype)
        low = np.where(space.low == numbers.tiny, -np.inf, space.low)
        high = np.where(space.high == numbers.max, np.inf, space.high)
        return gym.spaces.Box(low.astype(space.dtype), high.astype(space.dtype), dtype=space.low.dtype.type)
    return space
