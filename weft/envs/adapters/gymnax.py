"""Gymnax environments: written in JAX, so a whole rollout of them can be one program on the device.

>>> import jax
>>> env = make("CartPole-v1", num_envs=2)
>>> state, obs = env.reset(jax.random.key(0))
>>> state, timestep = env.step(state, jax.numpy.array([0, 1]), jax.random.key(1))
>>> timestep.obs.shape, timestep.reward.tolist()
((2, 4), [1.0, 1.0])
"""

import functools
from dataclasses import dataclass, replace
from typing import Any

import gymnasium as gym
import gymnax
import jax
import jax.numpy as jnp
import numpy as np
from gymnax.environments import spaces

from weft.envs.episodes import EpisodeStatistics
from weft.envs.rows import select_rows
from weft.envs.timestep import TimeStep
from weft.errors import WeftError, unknown
from weft.fragments import fragment
from weft.metrics import Mean

DESCRIPTIONS = {
    "CartPole-v1": "balance a pole on a cart; 500 steps at most",
    "Pendulum-v1": "swing a pendulum up and hold it; continuous torque, 200 steps",
    "Acrobot-v1": "swing the tip of two joined links above a line",
    "MountainCar-v0": "rock a weak car out of a valley",
    "MountainCarContinuous-v0": "rock a weak car out of a valley; continuous force",
    "Asterix-MinAtar": "collect treasure and dodge enemies on a 10x10 grid",
    "Breakout-MinAtar": "break bricks with a ball on a 10x10 grid",
    "Freeway-MinAtar": "cross a busy road on a 10x10 grid",
    "Seaquest-MinAtar": "rescue divers and fight submarines on a 10x10 grid",
    "SpaceInvaders-MinAtar": "shoot invaders on a 10x10 grid",
    "Catch-bsuite": "catch a falling ball with a paddle",
    "DeepSea-bsuite": "find the one rewarding path of a grid: deep exploration",
    "MemoryChain-bsuite": "remember a context over a delay",
    "UmbrellaChain-bsuite": "one early choice matters at the end: credit assignment",
    "DiscountingChain-bsuite": "choose between rewards at different delays",
    "SimpleBandit-bsuite": "an 11-armed bandit",
    "FourRooms-misc": "walk to a goal through four rooms",
    "MetaMaze-misc": "find a goal in a maze, again and again",
    "PointRobot-misc": "move a point to an unknown goal; continuous",
    "BernoulliBandit-misc": "a two-armed bandit with hidden success rates",
    "GaussianBandit-misc": "a two-armed bandit with hidden mean rewards",
    "Reacher-misc": "reach a point with a two-joint arm; continuous",
    "Swimmer-misc": "swim to a goal between urchins; continuous",
    "Pong-misc": "pong from 30x40 images",
    "FrozenLake-misc": "cross a slippery frozen lake",
}

# Environments that download a data set when they are made.
EXCLUDED = {"MNISTBandit-bsuite"}


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class GymnaxState:
    """Gymnax's own state of every environment, and the episode statistics."""

    inner: Any
    episodes: EpisodeStatistics


@dataclass(frozen=True)
class GymnaxEnv:
    """A batch of one gymnax environment: a value, so that equal environments share traced programs."""

    env_id: str
    num_envs: int

    @property
    def observation_space(self) -> gym.spaces.Box:
        return _load(self.env_id).observation_space

    @property
    def action_space(self) -> gym.Space:
        return _load(self.env_id).action_space

    def reset(self, key: jax.Array) -> tuple[GymnaxState, jax.Array]:
        loaded = _load(self.env_id)
        keys = jax.random.split(key, self.num_envs)
        with jax.numpy_dtype_promotion("standard"):
            obs, inner = jax.vmap(loaded.env.reset, in_axes=(0, None))(keys, loaded.params)
        return GymnaxState(_without_weak_types(inner), EpisodeStatistics.start(self.num_envs)), loaded.observe(obs)

    @fragment(name="env")
    def step(
        self, state: GymnaxState, action: jax.Array, key: jax.Array, last: jax.Array | None = None
    ) -> tuple[GymnaxState, TimeStep]:
        loaded = _load(self.env_id)
        keys = jax.random.split(key, self.num_envs)
        # Gymnax relies on implicit dtype promotion, which the caller may have restricted.
        with jax.numpy_dtype_promotion("standard"):
            stepped = jax.vmap(loaded.env.step, in_axes=(0, 0, 0, None))(
                keys, state.inner, loaded.clip(action), loaded.params
            )
        obs, inner, reward, terminated, truncated, info = stepped
        timestep = TimeStep(
            obs=loaded.observe(obs),
            reward=reward.astype(jnp.float32),
            terminated=terminated.astype(bool),
            truncated=(truncated & ~terminated).astype(bool),
            final_obs=loaded.observe(info["final_observation"]),
            valid=jnp.ones(self.num_envs, bool),
        )
        if last is not None:
            # `fold_in` gives a key that differs from all keys of the split above.
            inner, timestep = self._cut(inner, timestep, last, jax.random.fold_in(key, self.num_envs))
        ended = timestep.terminated | timestep.truncated
        episodes = state.episodes.record(timestep.reward, ended=ended, valid=timestep.valid)
        return GymnaxState(_without_weak_types(inner), episodes), timestep

    @fragment(name="env.episodes")
    def episodes(self, state: GymnaxState) -> tuple[GymnaxState, dict[str, Mean]]:
        episodes, metrics = state.episodes.pop_metrics()
        return GymnaxState(state.inner, episodes), metrics

    def _cut(self, inner: Any, timestep: TimeStep, last: jax.Array, key: jax.Array) -> tuple[Any, TimeStep]:
        """Truncates and restarts the episodes where `last` is true, unless the step has ended them."""
        cut = last & ~(timestep.terminated | timestep.truncated)
        initial, obs = self.reset(key)
        timestep = replace(timestep, obs=select_rows(cut, obs, timestep.obs), truncated=timestep.truncated | cut)
        return select_rows(cut, initial.inner, inner), timestep


def make(env_id: str, num_envs: int, **options: Any) -> GymnaxEnv:
    """Returns `num_envs` environments of one id, gymnax's own or registered with gymnax by the user."""
    if env_id not in available():
        raise unknown("gymnax environment", env_id, available())
    if options:
        raise WeftError(f"gymnax:{env_id} has no options, but was given {', '.join(options)}: leave them out")
    _load(env_id)
    return GymnaxEnv(env_id, num_envs)


def available() -> dict[str, str]:
    """Returns gymnax's environments with a one-line description."""
    known = [env_id for env_id in gymnax.registered_envs if env_id not in EXCLUDED]
    return {env_id: DESCRIPTIONS.get(env_id, "registered with gymnax") for env_id in known}


@dataclass(frozen=True)
class _LoadedEnv:
    """One gymnax environment with its parameters and spaces."""

    env: Any
    params: Any
    observation_space: gym.spaces.Box
    action_space: gym.Space
    categories: int | None
    """Number of values of a discrete observation, which is encoded one-hot. None: the observation is an array."""

    def observe(self, obs: jax.Array) -> jax.Array:
        if self.categories is not None:
            return jax.nn.one_hot(obs, self.categories, dtype=jnp.float32)
        return obs.astype(jnp.float32)

    def clip(self, action: jax.Array) -> jax.Array:
        if isinstance(self.action_space, gym.spaces.Box):
            return jnp.clip(action, self.action_space.low, self.action_space.high)
        return action


@functools.cache
def _load(env_id: str) -> _LoadedEnv:
    # Gymnax creates arrays in constructors and spaces. Under a trace, these would be tracers, and leak into this cache.
    with jax.ensure_compile_time_eval(), jax.numpy_dtype_promotion("standard"):
        env, params = gymnax.make(env_id)
        observation = env.observation_space(params)
        action_space = _space(env.action_space(params))
    if isinstance(observation, spaces.Discrete):
        one_hot = gym.spaces.Box(0.0, 1.0, (observation.n,), np.float32)
        return _LoadedEnv(env, params, one_hot, action_space, categories=observation.n)
    return _LoadedEnv(env, params, _space(observation), action_space, categories=None)


def _space(space: spaces.Space) -> Any:
    """Converts a gymnax space to a Gymnasium space."""
    if isinstance(space, spaces.Discrete):
        return gym.spaces.Discrete(space.n)
    if isinstance(space, spaces.Box):
        low, high = (np.broadcast_to(np.asarray(x, np.float32), space.shape) for x in (space.low, space.high))
        return gym.spaces.Box(low, high, dtype=np.float32)
    raise WeftError(f"gymnax space {space!r} is not supported: observations and actions must be Box or Discrete")


def _without_weak_types(tree: Any) -> Any:
    """Drops weak types, so that the carry of a loop keeps its type."""
    return jax.tree.map(lambda x: x.astype(x.dtype), tree)
