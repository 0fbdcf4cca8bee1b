"""Environments in plain Python behind the same `Env` interface as any other: a pool that host calls step.

The state that passes through the training loop holds no environment. It holds the identity of each row (its index in
the run and its seed) and an order token, which counts the row's calls. The pools themselves are kept in the run's
objects (`weft.host.objects`). A replica that gets a subset of the rows finds no pool for exactly these rows. It makes
one from their seeds, and every environment produces the same trajectory as it would anywhere else.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

from weft.envs import spaces
from weft.envs.pools.pool import Pool, PoolFactory
from weft.envs.timestep import TimeStep
from weft.errors import WeftError
from weft.fragments import fragment
from weft.host import host_call, new_token, objects
from weft.metrics import Mean


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class HostState:
    """The identity of every environment, and the number of calls so far."""

    token: jax.Array
    identities: jax.Array
    """For every row its index in the run and its seed, uint32 [B, 2]."""


@dataclass(frozen=True)
class HostEnv:
    """A batch of host environments, in pools that `pool_factory` makes."""

    pool_factory: PoolFactory
    num_envs: int

    @property
    def observation_space(self) -> gym.Space:
        return self.pool_factory.observation_space

    @property
    def action_space(self) -> gym.Space:
        return self.pool_factory.action_space

    def reset(self, key: jax.Array) -> tuple[HostState, Any]:
        # 31 bits: some environments store their seed in a signed integer.
        seeds = jax.random.bits(key, (self.num_envs,), jnp.uint32) >> 1
        identities = jax.ShapeDtypeStruct((self.num_envs, 2), jnp.uint32)
        result = identities, self.observation_shapes
        token, (identities, obs) = host_call(
            partial(_reset, self.pool_factory), result, new_token(self.num_envs), seeds, name="env.reset"
        )
        return HostState(token, identities), obs

    @fragment(name="env")
    def step(
        self, state: HostState, action: Any, key: jax.Array, last: jax.Array | None = None
    ) -> tuple[HostState, TimeStep]:
        del key
        flag = jax.ShapeDtypeStruct((self.num_envs,), bool)
        result = self.observation_shapes, _floats(self.num_envs), flag, flag, self.observation_shapes, flag
        arguments = state.identities, action, last
        token, fields = host_call(partial(_step, self.pool_factory), result, state.token, *arguments, name="env.step")
        return HostState(token, state.identities), TimeStep(*fields)

    @fragment(name="env.episodes")
    def episodes(self, state: HostState) -> tuple[HostState, dict[str, Mean]]:
        result = (_floats(self.num_envs),) * 4
        token, totals = host_call(
            partial(_pop_totals, self.pool_factory),
            result,
            state.token,
            state.identities,
            name="env.episodes.totals",
        )
        returns, lengths, finished, dropped = (total.sum() for total in totals)
        metrics = {
            "episode_return": Mean(returns, finished),
            "episode_length": Mean(lengths, finished),
            "episodes_dropped": Mean(dropped, finished + dropped),
        }
        return HostState(token, state.identities), metrics

    def render(self, state: HostState) -> np.ndarray:
        """Returns an image of the first environment, uint8 [height, width, 3]."""
        running = objects().get(np.asarray(state.identities).tobytes())
        image = getattr(running and running.pool, "render", lambda: None)()
        if image is None:
            raise WeftError(f"{self.pool_factory.name} renders no images: evaluate it without --video")
        return image

    @property
    def observation_shapes(self) -> Any:
        """The shapes of a batch of observations."""
        return spaces.shapes(self.pool_factory.observation_space, self.num_envs)


def _reset(pool_factory: PoolFactory, token: Any, seeds: Any) -> Any:
    first = objects().reserve_numbers(len(seeds))
    identities = np.stack([np.arange(first, first + len(seeds), dtype=np.uint32), seeds], axis=1)
    running, obs = _RunningPool.start(pool_factory, identities)
    objects().add(identities.tobytes(), running)
    return identities, obs


def _step(pool_factory: PoolFactory, token: Any, identities: Any, action: Any, last: Any) -> Any:
    step = _pool(pool_factory, token, identities).step(action, last)
    return step.obs, step.reward, step.terminated, step.truncated, step.final_obs, step.valid


def _pop_totals(pool_factory: PoolFactory, token: Any, identities: Any) -> Any:
    totals = _pool(pool_factory, token, identities).pop_totals()
    return totals.returns, totals.lengths, totals.finished, totals.dropped


@dataclass
class _RunningPool:
    """A pool, the indices of its rows, and the number of its calls (the reset is the first)."""

    pool: Pool
    indices: frozenset[int]
    calls: int = 1

    @classmethod
    def start(cls, pool_factory: PoolFactory, identities: np.ndarray) -> tuple["_RunningPool", Any]:
        """Makes the pool of some rows. Returns it with the first observations."""
        indices, seeds = identities.T.tolist()
        pool = pool_factory.make_pool(indices, seeds)
        try:
            return cls(pool, frozenset(indices)), pool.reset()
        except BaseException:
            pool.close()
            raise

    def overdue(self) -> Exception | None:
        """Returns the error for an environment that does not respond, or None."""
        return getattr(self.pool, "overdue", lambda: None)()

    def close(self) -> None:
        self.pool.close()


def _pool(pool_factory: PoolFactory, token: Any, identities: Any) -> Pool:
    """Returns the pool of exactly these rows. Raises if it has had more calls than the token counts."""
    key, calls = identities.tobytes(), int(token[0])
    running = objects().get(key) or _start_subset(pool_factory, key, identities)
    if running.calls != calls:
        raise WeftError(
            f"the state of {pool_factory.name} is from call {calls}, but its environments are at call {running.calls}: "
            "host environments cannot go back, so continue from the latest state or start a new run"
        )
    running.calls += 1
    return running.pool


def _start_subset(pool_factory: PoolFactory, key: bytes, identities: np.ndarray) -> _RunningPool:
    """Makes a pool for a subset of the rows of another pool, and closes that one: it will not be used again."""
    run_objects = objects()
    with run_objects.lock:
        indices = frozenset(identities[:, 0].tolist())
        run_objects.close_where(
            lambda other: isinstance(other, _RunningPool) and other.calls == 1 and indices < other.indices
        )
        return run_objects.add(key, _RunningPool.start(pool_factory, identities)[0])


def _floats(num_envs: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((num_envs,), jnp.float32)
