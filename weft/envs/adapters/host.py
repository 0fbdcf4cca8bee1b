"""Environments that are plain Python: a game's pools, behind the same three methods as any other environment.

The state that travels through the loop holds no environment, only names: each row's number and seed, and a token that
counts its steps. The environments themselves live in the run's objects. A replica that gets some of the rows finds no
pool for just these, and makes one from their seeds: every environment then goes on exactly as it would have anywhere
else.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

from weft.envs import spaces
from weft.envs.pools.pool import Game, Pool
from weft.envs.timestep import TimeStep
from weft.errors import WeftError
from weft.fragments import fragment
from weft.host import host_call, new_token, objects
from weft.metrics import Mean


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class HostState:
    """Which environments these are, and how far they are."""

    token: jax.Array
    names: jax.Array
    """For every row its number in the run and its seed."""


@dataclass(frozen=True)
class HostEnv:
    """A batch of environments of one game."""

    game: Game
    num_envs: int

    @property
    def observation_space(self) -> gym.Space:
        return self.game.observation_space

    @property
    def action_space(self) -> gym.Space:
        return self.game.action_space

    def reset(self, key: jax.Array) -> tuple[HostState, Any]:
        # 31 bits: some environments keep their seed in a signed integer.
        seeds = jax.random.bits(key, (self.num_envs,), jnp.uint32) >> 1
        names = jax.ShapeDtypeStruct((self.num_envs, 2), jnp.uint32)
        result = names, self.shapes
        token, (names, obs) = host_call(
            partial(_reset, self.game), result, new_token(self.num_envs), seeds, name="env.reset"
        )
        return HostState(token, names), obs

    @fragment(name="env")
    def step(
        self, state: HostState, action: Any, key: jax.Array, last: jax.Array | None = None
    ) -> tuple[HostState, TimeStep]:
        del key
        flag = jax.ShapeDtypeStruct((self.num_envs,), bool)
        result = self.shapes, _floats(self.num_envs), flag, flag, self.shapes, flag
        given = state.names, action, last
        token, stepped = host_call(partial(_step, self.game), result, state.token, *given, name="env.step")
        return HostState(token, state.names), TimeStep(*stepped)

    @fragment(name="env.episodes")
    def episodes(self, state: HostState) -> tuple[HostState, dict[str, Mean]]:
        result = (_floats(self.num_envs),) * 4
        token, totals = host_call(
            partial(_episodes, self.game), result, state.token, state.names, name="env.episodes.totals"
        )
        returns, lengths, finished, dropped = (total.sum() for total in totals)
        metrics = {
            "episode_return": Mean(returns, finished),
            "episode_length": Mean(lengths, finished),
            "episodes_dropped": Mean(dropped, finished + dropped),
        }
        return HostState(token, state.names), metrics

    def picture(self, state: HostState) -> np.ndarray:
        """What the first environment looks like now, as [height, width, 3] bytes."""
        playing = objects().get(np.asarray(state.names).tobytes())
        picture = getattr(playing and playing.pool, "picture", lambda: None)()
        if picture is None:
            raise WeftError(f"{self.game.name} gives no pictures: evaluate it without --video")
        return picture

    @property
    def shapes(self) -> Any:
        """The shapes of the observations of all rows."""
        return spaces.shapes(self.game.observation_space, self.num_envs)


def _reset(game: Game, token: Any, seeds: Any) -> Any:
    first = objects().number(len(seeds))
    names = np.stack([np.arange(first, first + len(seeds), dtype=np.uint32), seeds], axis=1)
    playing, obs = _Playing.start(game, names)
    objects().keep(names.tobytes(), playing)
    return names, obs


def _step(game: Game, token: Any, names: Any, action: Any, last: Any) -> Any:
    pool = _pool(game, token, names)
    stepped = pool.step(action, last)
    return stepped.obs, stepped.reward, stepped.terminated, stepped.truncated, stepped.final_obs, stepped.valid


def _episodes(game: Game, token: Any, names: Any) -> Any:
    totals = _pool(game, token, names).episodes()
    return totals.returns, totals.lengths, totals.finished, totals.dropped


@dataclass
class _Playing:
    """A pool with the rows it holds, and how often it was called: to reset it was the first time."""

    pool: Pool
    rows: frozenset[int]
    calls: int = 1

    @classmethod
    def start(cls, game: Game, names: np.ndarray) -> tuple["_Playing", Any]:
        """The pool of some rows, and their first observations."""
        indices, seeds = names.T.tolist()
        pool = game.pool(indices, seeds)
        try:
            return cls(pool, frozenset(indices)), pool.reset()
        except BaseException:
            pool.close()
            raise

    def overdue(self) -> Exception | None:
        """The error for an environment that does not answer, if there is one."""
        return getattr(self.pool, "overdue", lambda: None)()

    def close(self) -> None:
        self.pool.close()


def _pool(game: Game, token: Any, names: Any) -> Pool:
    """The pool of exactly these rows, as far as the token says."""
    key, calls = names.tobytes(), int(token[0])
    playing = objects().get(key) or _share(game, key, names)
    if playing.calls != calls:
        raise WeftError(
            f"the state of {game.name} is from its call {calls}, but the environments have gone on to {playing.calls}: "
            "host environments cannot go back, so go on from the newest state or start a new run"
        )
    playing.calls += 1
    return playing.pool


def _share(game: Game, key: bytes, names: np.ndarray) -> _Playing:
    """A pool for some of the rows that were started together; whoever started them all will not be asked again."""
    kept = objects()
    with kept.lock:
        rows = frozenset(names[:, 0].tolist())
        kept.drop(lambda other: isinstance(other, _Playing) and other.calls == 1 and rows < other.rows)
        return kept.keep(key, _Playing.start(game, names)[0])


def _floats(num_envs: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((num_envs,), jnp.float32)
