"""An environment that replays fixed random data, so that tests can compute the expected result of a wrapper."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

from weft import Mean, TimeStep, fragment
from weft.envs.episodes import EpisodeStatistics

LENGTH = 60


@dataclass(frozen=True)
class Scripted:
    """Replays a script of random numbers. The script is part of the state, so each replica gets its own rows of it.

    Some ends are followed by an invalid row, as an autoreset inserts: its numbers must not be counted.
    """

    num_envs: int
    centre: float = 0.0
    spread: float = 1.0
    observation_space = gym.spaces.Dict(
        place=gym.spaces.Box(-1e6, 1e6, (3,), np.float32),
        image=gym.spaces.Box(0, 255, (4, 4, 2), np.uint8),
        room=gym.spaces.Discrete(5),
    )
    action_space = gym.spaces.Discrete(2)

    @cached_property
    def script(self) -> dict[str, Any]:
        """Arrays [B, LENGTH, ...]; the observations also have the first one, so [B, LENGTH + 1, ...]."""
        rng, shape = np.random.default_rng(0), (self.num_envs, LENGTH)
        terminated = rng.random(shape) < 0.1
        truncated = (rng.random(shape) < 0.1) & ~terminated
        after_an_end = np.pad(terminated | truncated, ((0, 0), (1, 0)))[:, :-1]
        valid = ~(after_an_end & (rng.random(shape) < 0.5))
        obs, other = (self.observations(rng, (self.num_envs, LENGTH + 1)) for _ in range(2))
        ended = terminated & valid | truncated & valid
        final = {name: _where(ended, other[name][:, 1:], obs[name][:, 1:]) for name in obs}
        reward = np.where(valid, rng.normal(1.0, 3.0, shape), 0.0).astype(np.float32)
        flags = {"terminated": terminated & valid, "truncated": truncated & valid, "valid": valid}
        return {"obs": obs, "final": final, "reward": reward, **flags}

    def observations(self, rng: np.random.Generator, shape: tuple[int, int]) -> dict[str, np.ndarray]:
        return {
            "place": rng.normal(self.centre, self.spread, (*shape, 3)).astype(np.float32),
            "image": rng.integers(0, 256, (*shape, 4, 4, 2), np.uint8),
            "room": rng.integers(0, 5, shape, np.int32),
        }

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        script = jax.tree.map(jnp.asarray, self.script)
        time, episodes = jnp.zeros(self.num_envs, jnp.int32), EpisodeStatistics.start(self.num_envs)
        first = jax.tree.map(lambda leaf: leaf[:, 0], script["obs"])
        return {"script": script, "time": time, "episodes": episodes}, first

    @fragment(name="env")
    def step(self, state: Any, action: jax.Array, key: jax.Array, last: Any = None) -> tuple[Any, TimeStep]:
        def at(leaf: jax.Array, time: jax.Array) -> jax.Array:
            return jax.vmap(lambda row, t: row[t])(leaf, time)

        script, time = state["script"], state["time"]
        obs = jax.tree.map(lambda leaf: at(leaf, time + 1), script["obs"])
        now = {name: jax.tree.map(lambda leaf: at(leaf, time), script[name]) for name in script if name != "obs"}
        if last is not None:
            now["truncated"] = now["truncated"] | last & now["valid"] & ~now["terminated"]
        timestep = TimeStep(obs, now["reward"], now["terminated"], now["truncated"], now["final"], now["valid"])
        ended = timestep.terminated | timestep.truncated
        episodes = state["episodes"].record(timestep.reward, ended=ended, valid=timestep.valid)
        return state | {"time": time + 1, "episodes": episodes}, timestep

    @fragment(name="env.episodes")
    def episodes(self, state: Any) -> tuple[Any, dict[str, Mean]]:
        episodes, metrics = state["episodes"].pop_metrics()
        return state | {"episodes": episodes}, metrics | {"rows": Mean.of(jnp.ones(self.num_envs))}


def play(env: Any, steps: int = LENGTH, merge_every: int = 0) -> tuple[Any, Any, Any]:
    """Returns the final state, the first observations, and all time steps as NumPy arrays [B, steps, ...]."""
    key, action = jax.random.key(0), jnp.zeros(env.num_envs, jnp.int32)
    state, first = env.reset(key)
    step, episodes, seen = jax.jit(env.step), jax.jit(env.episodes), []
    for t in range(1, steps + 1):
        state, timestep = step(state, action, key)
        seen.append(timestep)
        if merge_every and t % merge_every == 0:
            state, _ = episodes(state)
    return state, first, jax.tree.map(lambda *leaves: np.stack(leaves, axis=1), *seen)


def _where(rows: np.ndarray, new: np.ndarray, old: np.ndarray) -> np.ndarray:
    return np.where(rows.reshape(*rows.shape, *[1] * (old.ndim - 2)), new, old)
