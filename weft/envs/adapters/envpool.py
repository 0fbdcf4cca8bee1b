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

from weft.envs.adapters.arguments import Arguments
from weft.envs.adapters.atari import AtariLearningSignal
from weft.envs.adapters.host import HostEnv
from weft.envs.pools.failures import EnvFailed
from weft.envs.pools.options import one_of
from weft.envs.pools.pool import Pool
from weft.envs.pools.vector_pool import VectorPool
from weft.envs.spaces import map_space
from weft.errors import WeftError, unknown

# Settings of EnvPool that the adapter determines itself.
RESERVED = {"num_envs", "batch_size", "seed", "env_seed", "base_path", "gym_reset_return_info", "max_num_players"}
# Options of Atari games for `AtariLearningSignal`. EnvPool's own versions would change the reported scores.
LEARNING_OPTIONS = {"clip_reward": True, "life_loss": False}
ATARI_RESERVED = {"reward_clip", "episodic_life", "zero_discount_on_life_loss"}
ATARI_DEFAULTS = {"repeat_action_probability": 0.25}
AUTORESET = ("next_step", "same_step")


@dataclass(frozen=True)
class EnvPoolFactory:
    """Makes pools of one EnvPool task."""

    env_id: str
    config: Arguments
    autoreset: str = "next_step"
    learning_options: Arguments | None = None
    """For Atari games: the arguments of `AtariLearningSignal`."""

    @property
    def name(self) -> str:
        return f"envpool:{self.env_id}"

    @property
    def observation_space(self) -> gym.Space:
        return _spaces(self.env_id, self.config)[0]

    @property
    def action_space(self) -> gym.Space:
        return _spaces(self.env_id, self.config)[1]

    def make_pool(self, indices: Sequence[int], seeds: Sequence[int]) -> Pool:
        return VectorPool(
            self.name,
            EnvPoolVector(_make_pool(self.env_id, self.config, seeds), self.autoreset),
            kind="native",
            observation_space=self.observation_space,
            action_space=self.action_space,
            indices=indices,
            seeds=seeds,
            learning_signal=AtariLearningSignal(**dict(self.learning_options.items)) if self.learning_options else None,
        )


class EnvPoolVector:
    """A pool of EnvPool as a `VectorEnv`. EnvPool seeds its environments when it makes them."""

    def __init__(self, pool: Any, autoreset: str) -> None:
        self._pool: Any = pool
        # EnvPool restarts a row in the step after its end, unless the caller reset the row before.
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
    """Returns `num_envs` environments of one EnvPool task."""
    known = available()
    if not known:
        raise WeftError(f"envpool:{env_id} needs EnvPool: pip install envpool")
    if env_id not in known:
        raise unknown("envpool environment", env_id, known)
    pool_factory = _pool_factory(env_id, options)
    # Makes one environment now, so that an error is raised here and not in the run.
    _ = pool_factory.observation_space
    return HostEnv(pool_factory, num_envs)


def available() -> dict[str, str]:
    """Returns all EnvPool tasks with a one-line description; none if EnvPool is not installed."""
    return {env_id: f"{module.removeprefix('envpool.')}, in C++" for env_id, module in _tasks().items()}


@functools.cache
def _tasks() -> dict[str, str]:
    try:
        from envpool.registration import registry
    except ImportError:
        return {}
    return {env_id: specification[0] for env_id, specification in registry.specs.items()}


def _pool_factory(env_id: str, options: Mapping[str, Any]) -> EnvPoolFactory:
    is_atari = _tasks()[env_id] == "envpool.atari"
    learning = {name: options.get(name, value) for name, value in LEARNING_OPTIONS.items()} if is_atari else {}
    autoreset = options.get("autoreset", "next_step")
    config = {name: value for name, value in options.items() if name not in learning and name != "autoreset"}
    reserved = RESERVED | ATARI_RESERVED if is_atari else RESERVED
    known = [name for name in _config_names(env_id) if name not in reserved]
    for name in config:
        if name not in known:
            raise unknown(f"option of envpool:{env_id}", name, [*known, *learning, "autoreset"])
    if autoreset not in AUTORESET:
        raise WeftError(f"autoreset is {autoreset!r}: it must be {one_of(AUTORESET)}")
    for name, value in learning.items():
        if not isinstance(value, bool):
            raise WeftError(f"{name} is {value!r}: it must be true or false")
    config = ATARI_DEFAULTS | config if is_atari else config
    return EnvPoolFactory(env_id, Arguments.of(config), autoreset, Arguments.of(learning) if is_atari else None)


@functools.cache
def _config_names(env_id: str) -> tuple[str, ...]:
    import envpool

    return tuple(envpool.make_spec(env_id).config._fields)


@functools.cache
def _spaces(env_id: str, config: Arguments) -> tuple[gym.Space, gym.Space]:
    pool = _make_pool(env_id, config, (0,))
    try:
        observation, action = _without_false_bounds(pool.observation_space), _without_false_bounds(pool.action_space)
        players = len(pool.reset()[1]["players"]["env_id"])
    finally:
        pool.close()
    for space in (observation, action):
        map_space(lambda _: None, space)
    if players != 1:
        raise WeftError(f"envpool:{env_id} has {players} players, but only tasks with one player are supported")
    return observation, action


def _make_pool(env_id: str, config: Arguments, seeds: Sequence[int]) -> Any:
    import envpool

    try:
        pool = envpool.make_gymnasium(env_id, num_envs=len(seeds), seed=list(seeds), **dict(config.items))
        with warnings.catch_warnings():
            # The first access to a space warns that its float64 bounds are converted to float32.
            warnings.simplefilter("ignore")
            _ = pool.observation_space, pool.action_space
        return pool
    except Exception as error:
        text = " ".join(str(error).split())
        raise EnvFailed(f"envpool:{env_id} cannot be made: {type(error).__name__}: {text}") from error


def _without_false_bounds(space: gym.Space) -> gym.Space:
    """Returns the space with infinite bounds where EnvPool writes the smallest and largest float for no bound."""
    if isinstance(space, gym.spaces.Dict):
        return gym.spaces.Dict({name: _without_false_bounds(part) for name, part in space.spaces.items()})
    if isinstance(space, gym.spaces.Box) and np.dtype(space.dtype).kind == "f":
        numbers = np.finfo(space.low.dtype)
        low = np.where(space.low == numbers.tiny, -np.inf, space.low)
        high = np.where(space.high == numbers.max, np.inf, space.high)
        return gym.spaces.Box(low.astype(space.dtype), high.astype(space.dtype), dtype=space.low.dtype.type)
    return space
