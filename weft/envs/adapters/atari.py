"""Atari 2600 games, as `gym:ALE/Pong-v5`: emulated and preprocessed in C++ threads.

The preprocessing is that of Mnih et al. 2015: every fourth frame, the maximum over the last two frames, grey, 84x84, a
stack of four, and up to 30 no-op actions at the start. As Machado et al. 2018 advise, an action is repeated for another
frame with probability 0.25, and an episode ends with the game, not with a life. The agent learns from the sign of the
reward; statistics report the true score.

>>> env = make("ALE/Breakout-v5", 2, workers=1)
>>> env.observation_space.shape, env.action_space
((4, 84, 84), Discrete(4))
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from weft.envs.adapters.host import HostEnv
from weft.envs.pools.pool import Pool
from weft.envs.pools.vector_pool import VectorPool
from weft.errors import WeftError, unknown

PREFIX = "ALE/"


@dataclass(frozen=True)
class Settings:
    """Options of the emulator and the preprocessing."""

    frameskip: int = 4
    sticky: float = 0.25
    """The probability that the emulator repeats the previous action."""
    noop: int = 30
    """The maximum number of no-op actions at the start of an episode."""
    fire: bool = True
    """Whether to press the fire button at the start of games that wait for it."""
    life_loss: bool = False
    """Whether the loss of a life terminates the episode, for learning only."""
    clip_reward: bool = True
    full_action_space: bool = False
    max_frames: int = 108_000
    workers: int | None = None
    """Number of threads. None: one per core."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value, (is_valid, expected) = getattr(self, field.name), _CHECKS[field.name]
            if not is_valid(value):
                raise WeftError(f"{field.name} is {value!r}: it must be {expected}")


@dataclass(frozen=True)
class AtariPoolFactory:
    """Makes pools of one Atari game."""

    env_id: str
    rom: str
    settings: Settings

    @property
    def name(self) -> str:
        return f"gym:{self.env_id}"

    @property
    def observation_space(self) -> gym.Space:
        return _spaces(self.rom, self.settings.full_action_space)[0]

    @property
    def action_space(self) -> gym.Space:
        return _spaces(self.rom, self.settings.full_action_space)[1]

    def make_pool(self, indices: Sequence[int], seeds: Sequence[int]) -> Pool:
        common: dict[str, Any] = {"observation_space": self.observation_space, "action_space": self.action_space}
        settings = self.settings
        return VectorPool(
            self.name,
            AtariVector(self.rom, len(seeds), settings),
            kind="native",
            indices=indices,
            seeds=seeds,
            learning_signal=AtariLearningSignal(clip_reward=settings.clip_reward, life_loss=settings.life_loss),
            **common,
        )


class AtariVector:
    """The emulator's vector environment as a `VectorEnv`."""

    autoreset = "same_step"

    def __init__(self, rom: str, num_envs: int, settings: Settings) -> None:
        self._vector: Any = _vector(rom, num_envs, settings)

    def reset(self, seeds: Sequence[int]) -> tuple[Any, dict[str, Any]]:
        return self._vector.reset(seed=np.array(seeds))

    def step(self, action: np.ndarray) -> Any:
        return self._vector.step(action)

    def restart(self, rows: np.ndarray) -> tuple[Any, dict[str, Any]]:
        obs, info = self._vector.reset(options={"reset_mask": rows})
        return obs[rows], info

    def close(self) -> None:
        # Its threads end with the last reference to it.
        self._vector = None


class AtariLearningSignal:
    """Clips rewards to their sign, and marks lost lives as terminations."""

    def __init__(self, *, clip_reward: bool, life_loss: bool) -> None:
        self._clip_reward, self._life_loss, self._lives = clip_reward, life_loss, np.zeros(0)

    def __call__(self, reward: np.ndarray, ended: np.ndarray, info: dict[str, Any]) -> tuple[np.ndarray, Any]:
        reward = np.sign(reward) if self._clip_reward else reward
        if not self._life_loss:
            return reward, None
        previous, self._lives = self._lives, info["lives"].copy()
        return reward, (self._lives < previous) & ~ended if len(previous) else None


def make(env_id: str, num_envs: int, **options: Any) -> HostEnv:
    """Returns `num_envs` environments of one game."""
    known = available()
    if not known:
        raise WeftError(f"gym:{env_id} needs the Arcade Learning Environment: pip install ale-py")
    if env_id not in known:
        raise unknown("gym environment", env_id, known)
    return HostEnv(AtariPoolFactory(env_id, gym.spec(env_id).kwargs["game"], _settings(env_id, options)), num_envs)


def available() -> dict[str, str]:
    """Returns the games with a one-line description; none if the emulator is not installed."""
    try:
        import ale_py
    except ImportError:
        return {}
    gym.register_envs(ale_py)
    ids = [env_id for env_id in gym.registry if env_id.startswith(PREFIX)]
    return {env_id: f"{env_id.removeprefix(PREFIX).rpartition('-')[0]} of the Atari 2600" for env_id in ids}


def _settings(env_id: str, options: Mapping[str, Any]) -> Settings:
    known = [field.name for field in dataclasses.fields(Settings)]
    for name in options:
        if name not in known:
            raise unknown(f"option of gym:{env_id}", name, known)
    return Settings(**options)


@functools.cache
def _spaces(rom: str, full_action_space: bool) -> tuple[gym.Space, gym.Space]:
    vector = _vector(rom, 1, Settings(full_action_space=full_action_space, workers=1))
    return vector.single_observation_space, vector.single_action_space


def _vector(rom: str, num_envs: int, settings: Settings) -> Any:
    import ale_py
    from ale_py.vector_env import AtariVectorEnv

    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    return AtariVectorEnv(
        rom,
        num_envs,
        num_threads=settings.workers or 0,
        max_num_frames_per_episode=settings.max_frames,
        repeat_action_probability=settings.sticky,
        full_action_space=settings.full_action_space,
        autoreset_mode=gym.vector.AutoresetMode.SAME_STEP,
        frameskip=settings.frameskip,
        noop_max=settings.noop,
        reward_clipping=False,
        use_fire_reset=settings.fire,
    )


def _is_whole(least: int) -> Any:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= least


_FLAG = (lambda value: isinstance(value, bool), "true or false")
_CHECKS: dict[str, tuple[Any, str]] = {
    "frameskip": (_is_whole(1), "a whole number from 1"),
    "sticky": (lambda value: isinstance(value, int | float) and 0 <= value < 1, "a number from 0 to below 1"),
    "noop": (_is_whole(0), "a whole number from 0"),
    "fire": _FLAG,
    "life_loss": _FLAG,
    "clip_reward": _FLAG,
    "full_action_space": _FLAG,
    "max_frames": (_is_whole(1), "a whole number from 1"),
    "workers": (lambda value: value is None or _is_whole(1)(value), "a whole number from 1"),
}
