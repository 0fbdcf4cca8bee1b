"""Brax environments: rigid-body physics in JAX, so a whole rollout of robots can be one program on the device.

Brax's own way to start episodes anew forgets how the last one ended, so it is done here. An episode that reaches the
time limit is truncated, not terminated, and its last observation is kept.

A reset costs up to half as much as a step. It is computed, for all environments, in steps where some episode ends and
in no others. With `fresh=False` it is never computed again: every environment keeps its first state and returns to it,
as Brax does. That is faster where some episode always ends, but no more starts are ever seen than environments.

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

from weft.envs.episodes import Episodes
from weft.envs.rows import select
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
    """Brax's own state of every environment, steps of its episode, the statistics, and where to return to, if fixed."""

    inner: Any
    time: jax.Array
    episodes: Episodes
    first: Any


@dataclass(frozen=True)
class BraxEnv:
    """A batch of one Brax environment; equal by value, so that programs traced for it are shared."""

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
        inner = self._start(key)
        time, episodes = jnp.zeros(self.num_envs, jnp.int32), Episodes.start(self.num_envs)
        return BraxState(inner, time, episodes, () if self.fresh else inner), _observed(inner.obs)

    @fragment(name="env")
    def step(
        self, state: BraxState, action: jax.Array, key: jax.Array, last: jax.Array | None = None
    ) -> tuple[BraxState, TimeStep]:
        robot = _load(self.env_id, self.options)
        with _own_rules():
            stepped = jax.vmap(robot.env.step)(state.inner, jnp.clip(action, -1.0, 1.0))
        inner = jax.tree.map(_typed, stepped, state.inner)
        time, terminated = state.time + 1, inner.done > 0.5
        over = time >= self.episode_length if last is None else (time >= self.episode_length) | last
        ended = terminated | over
        after = self._renewed(ended, inner, state.first, key)
        timestep = TimeStep(
            obs=_observed(after.obs),
            reward=inner.reward.astype(jnp.float32),
            terminated=terminated,
            truncated=over & ~terminated,
            final_obs=_observed(inner.obs),
            valid=jnp.ones(self.num_envs, bool),
        )
        episodes = state.episodes.record(timestep.reward, ended=ended, valid=timestep.valid)
        return BraxState(after, jnp.where(ended, 0, time), episodes, state.first), timestep

    @fragment(name="env.episodes")
    def episodes(self, state: BraxState) -> tuple[BraxState, dict[str, Mean]]:
        episodes, metrics = state.episodes.take()
        return replace(state, episodes=episodes), metrics

    def _start(self, key: jax.Array) -> Any:
        """Brax's state of environments that have just begun."""
        robot = _load(self.env_id, self.options)
        with _own_rules():
            inner = jax.vmap(robot.env.reset)(jax.random.split(key, self.num_envs))
        return jax.tree.map(_typed, inner, inner)

    def _renewed(self, ended: jax.Array, inner: Any, first: Any, key: jax.Array) -> Any:
        """The states with those whose episodes ended begun anew."""
        if not self.fresh:
            return select(ended, first, inner)
        return jax.lax.cond(ended.any(), lambda: select(ended, self._start(key), inner), lambda: inner)


def make(env_id: str, num_envs: int, *, fresh: bool = True, episode_length: int = 1000, **options: Any) -> BraxEnv:
    """`num_envs` copies of one Brax environment; also of those that a user registered with Brax.

    `fresh` and `episode_length` (in steps) say how episodes start and end; `options` go to Brax: `backend="spring"`.
    """
    if env_id not in (known := _brax()._envs):
        raise unknown("brax environment", env_id, known)
    if episode_length < 1:
        raise WeftError(f"brax:{env_id}: episode_length is {episode_length}, and must be at least 1")
    chosen = tuple(sorted(options.items()))
    _load(env_id, chosen)
    return BraxEnv(env_id, num_envs, fresh, episode_length, chosen)


def available() -> dict[str, str]:
    """Brax's environments, with one line about each; Brax itself is not asked, as it may not be installed."""
    return DESCRIPTIONS


@dataclass(frozen=True)
class _Robot:
    env: Any
    observation_space: gym.Space
    action_space: gym.spaces.Box


@functools.cache
def _load(env_id: str, options: tuple[tuple[str, Any], ...]) -> _Robot:
    # Brax builds arrays in constructors: under a trace they would leak into this cache.
    with jax.ensure_compile_time_eval(), _own_rules(), _quiet_mujoco():
        try:
            env = _brax().get_environment(env_id, **dict(options))
        except (TypeError, ValueError) as error:
            given = ", ".join(f"{name}={value!r}" for name, value in options)
            raise WeftError(f"brax:{env_id} does not take {given}: {error}") from error
        size = env.action_size
    with _own_rules():
        obs = jax.eval_shape(env.reset, jax.random.key(0)).obs
    return _Robot(env, _space(obs), gym.spaces.Box(-1.0, 1.0, (size,), np.float32))


@functools.cache
def _brax() -> ModuleType:
    """Brax's environments, imported when first asked for."""
    try:
        # MuJoCo prints what it does without.
        with _own_rules(), contextlib.redirect_stdout(io.StringIO()):
            return importlib.import_module("brax.envs")
    except ImportError as error:
        raise WeftError(f"brax cannot be imported ({error}): pip install 'weft[brax]'") from error


@contextlib.contextmanager
def _own_rules() -> Iterator[None]:
    """Let Brax mix types, and warn of what it uses itself: that is neither ours nor our callers' to mend."""
    with jax.numpy_dtype_promotion("standard"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def _quiet_mujoco() -> Iterator[None]:
    """MuJoCo, which reads Brax's models, warns of their age on the terminal and in a file where it runs."""
    mujoco: Any = importlib.import_module("mujoco")
    handler = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda message: None)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(handler)


def _typed(array: jax.Array, like: jax.Array) -> jax.Array:
    """The array with the type of another, and not a weak one, so that a loop's carry keeps its type."""
    same = array.dtype == like.dtype and not jax.typeof(array).weak_type
    return array if same else array.astype(like.dtype)


def _observed(obs: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf.astype(jnp.float32), obs)


def _space(obs: Any) -> gym.Space:
    """The space of one observation, which is an array or a dictionary of them."""
    if isinstance(obs, Mapping):
        return gym.spaces.Dict({name: _space(part) for name, part in obs.items()})
    return gym.spaces.Box(-np.inf, np.inf, obs.shape, np.float32)
