"""Brax environments: rigid-body physics in JAX, so a whole rollout of robots can be one program on the device.

Brax's own autoreset loses how the previous episode ended, so this adapter restarts episodes itself. An episode that
reaches the time limit is truncated, not terminated, and its last observation is kept.

A reset costs up to half as much as a step. It is computed for all environments, and only in steps where some episode
ends. With `fresh=False` it is computed once: every environment returns to its first initial state, as in Brax. This is
faster if some episode ends in nearly every step, but training sees only `num_envs` different initial states.

>>> import jax
>>> env = make("fast", num_envs=2)
>>> state, obs = env.reset(jax.random.key(0))
>>> state, timestep = env.step(state, jax.numpy.ones((2, 3)), jax.random.key(1))
>>> timestep.obs.shape, timestep.terminated.tolist()
((2, 2), [False, False])
"""

import contextlib
import functools
import importlib
import io
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

from weft.envs.episodes import EpisodeStatistics
from weft.envs.rows import select_rows
from weft.envs.timestep import TimeStep
from weft.errors import WeftError, unknown
from weft.fragments import fragment
from weft.metrics import Mean

DESCRIPTIONS = {
    "ant": "walk with four legs",
    "fast": "no physics at all: a quick stand-in for tests",
    "halfcheetah": "run with two legs in a plane",
    "hopper": "hop on one leg in a plane",
    "humanoid": "walk on two legs",
    "humanoidstandup": "stand up on two legs",
    "inverted_double_pendulum": "balance two joined poles on a cart",
    "inverted_pendulum": "balance a pole on a cart",
    "pusher": "push a cylinder to a goal with a seven-joint arm",
    "reacher": "reach a point with a two-joint arm",
    "swimmer": "swim with three joined links",
    "walker2d": "walk on two legs in a plane",
}


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class BraxState:
    """The state of every environment."""

    inner: Any
    """Brax's own state."""
    time: jax.Array
    """Steps in the current episode."""
    episodes: EpisodeStatistics
    initial: Any
    """With `fresh=False`, the state at which every episode starts; otherwise empty."""


@dataclass(frozen=True)
class BraxEnv:
    """A batch of one Brax environment: a value, so that equal environments share traced programs."""

    env_id: str
    num_envs: int
    fresh: bool
    episode_length: int
    options: tuple[tuple[str, Any], ...]

    @property
    def observation_space(self) -> gym.Space:
        return _load(self.env_id, self.options).observation_space

    @property
    def action_space(self) -> gym.spaces.Box:
        return _load(self.env_id, self.options).action_space

    def reset(self, key: jax.Array) -> tuple[BraxState, Any]:
        inner = self._initial_states(key)
        time, episodes = jnp.zeros(self.num_envs, jnp.int32), EpisodeStatistics.start(self.num_envs)
        return BraxState(inner, time, episodes, () if self.fresh else inner), _as_float32(inner.obs)

    @fragment(name="env")
    def step(
        self, state: BraxState, action: jax.Array, key: jax.Array, last: jax.Array | None = None
    ) -> tuple[BraxState, TimeStep]:
        loaded = _load(self.env_id, self.options)
        with _brax_rules():
            stepped = jax.vmap(loaded.env.step)(state.inner, jnp.clip(action, -1.0, 1.0))
        inner = jax.tree.map(_with_dtype_of, stepped, state.inner)
        time, terminated = state.time + 1, inner.done > 0.5
        cut = time >= self.episode_length if last is None else (time >= self.episode_length) | last
        ended = terminated | cut
        restarted = self._restart(ended, inner, state.initial, key)
        timestep = TimeStep(
            obs=_as_float32(restarted.obs),
            reward=inner.reward.astype(jnp.float32),
            terminated=terminated,
            truncated=cut & ~terminated,
            final_obs=_as_float32(inner.obs),
            valid=jnp.ones(self.num_envs, bool),
        )
        episodes = state.episodes.record(timestep.reward, ended=ended, valid=timestep.valid)
        return BraxState(restarted, jnp.where(ended, 0, time), episodes, state.initial), timestep

    @fragment(name="env.episodes")
    def episodes(self, state: BraxState) -> tuple[BraxState, dict[str, Mean]]:
        episodes, metrics = state.episodes.pop_metrics()
        return replace(state, episodes=episodes), metrics

    def _initial_states(self, key: jax.Array) -> Any:
        """Returns Brax's state at the start of an episode, for all environments."""
        loaded = _load(self.env_id, self.options)
        with _brax_rules():
            inner = jax.vmap(loaded.env.reset)(jax.random.split(key, self.num_envs))
        return jax.tree.map(_with_dtype_of, inner, inner)

    def _restart(self, ended: jax.Array, inner: Any, initial: Any, key: jax.Array) -> Any:
        """Replaces the states of ended episodes by initial ones."""
        if not self.fresh:
            return select_rows(ended, initial, inner)
        return jax.lax.cond(ended.any(), lambda: select_rows(ended, self._initial_states(key), inner), lambda: inner)


def make(env_id: str, num_envs: int, *, fresh: bool = True, episode_length: int = 1000, **options: Any) -> BraxEnv:
    """Returns `num_envs` environments of one id, Brax's own or registered with Brax by the user.

    `fresh` selects how episodes start (see the module's docstring) and `episode_length` limits their steps. Other
    options are passed to Brax, for example `backend="spring"`.
    """
    if env_id not in (known := _brax()._envs):
        raise unknown("brax environment", env_id, known)
    if episode_length < 1:
        raise WeftError(f"brax:{env_id}: episode_length is {episode_length}, but must be at least 1")
    brax_options = tuple(sorted(options.items()))
    _load(env_id, brax_options)
    return BraxEnv(env_id, num_envs, fresh, episode_length, brax_options)


def available() -> dict[str, str]:
    """Returns Brax's environments with a one-line description. Does not need Brax to be installed."""
    return DESCRIPTIONS


@dataclass(frozen=True)
class _LoadedEnv:
    env: Any
    observation_space: gym.Space
    action_space: gym.spaces.Box


@functools.cache
def _load(env_id: str, options: tuple[tuple[str, Any], ...]) -> _LoadedEnv:
    # Brax creates arrays in constructors. Under a trace, these would be tracers, and leak into this cache.
    with jax.ensure_compile_time_eval(), _brax_rules(), _quiet_mujoco():
        try:
            env = _brax().get_environment(env_id, **dict(options))
        except (TypeError, ValueError) as error:
            arguments = ", ".join(f"{name}={value!r}" for name, value in options)
            raise WeftError(f"brax:{env_id} does not take {arguments}: {error}") from error
        size = env.action_size
    with _brax_rules():
        obs = jax.eval_shape(env.reset, jax.random.key(0)).obs
    return _LoadedEnv(env, _space(obs), gym.spaces.Box(-1.0, 1.0, (size,), np.float32))


@functools.cache
def _brax() -> ModuleType:
    """Imports Brax's environments."""
    try:
        # MuJoCo prints which optional packages are missing.
        with _brax_rules(), contextlib.redirect_stdout(io.StringIO()):
            return importlib.import_module("brax.envs")
    except ImportError as error:
        raise WeftError(f"brax cannot be imported ({error}): pip install 'weft[brax]'") from error


@contextlib.contextmanager
def _brax_rules() -> Iterator[None]:
    """Allows implicit dtype promotion and ignores warnings inside Brax, where callers cannot fix either."""
    with jax.numpy_dtype_promotion("standard"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def _quiet_mujoco() -> Iterator[None]:
    """Silences MuJoCo's warnings about old model files, which it also writes to a file in the working directory."""
    mujoco: Any = importlib.import_module("mujoco")
    handler = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda message: None)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(handler)


def _with_dtype_of(array: jax.Array, like: jax.Array) -> jax.Array:
    """Casts an array to the dtype of another and drops its weak type, so that the carry of a loop keeps its type."""
    same = array.dtype == like.dtype and not jax.typeof(array).weak_type
    return array if same else array.astype(like.dtype)


def _as_float32(obs: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf.astype(jnp.float32), obs)


def _space(obs: Any) -> gym.Space:
    """Returns the space of an observation, which is an array or a dictionary of arrays."""
    if isinstance(obs, Mapping):
        return gym.spaces.Dict({name: _space(part) for name, part in obs.items()})
    return gym.spaces.Box(-np.inf, np.inf, obs.shape, np.float32)
