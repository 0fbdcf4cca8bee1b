"""The one loop that collects experience: act, step, remember."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax

from weft.envs.timestep import Env
from weft.ops.memory import Past, forget


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Place:
    """Where a rollout stands: the environments' state, what they show, what the actor remembers; leaves [B, ...]."""

    env: Any
    obs: Any
    memory: Any = ()


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Transition:
    """One step of every environment, leaves [B, ...]; or with a leading time axis a trajectory, leaves [T, B, ...].

    `extra` is whatever acting gave beside the action. `final_obs` is where the step led, also where an episode ended.
    `past` is there in the trajectories of actors that remember.
    """

    obs: Any
    action: Any
    extra: Any
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    final_obs: Any
    valid: jax.Array
    past: Past | None = None

    @property
    def ended(self) -> jax.Array:
        """Whether the next step is of another episode, for which nothing of this one may be remembered."""
        # After a row that an autoreset inserted there always is a new episode.
        return self.terminated | self.truncated | ~self.valid


Act = Callable[[Any, Any, Any], tuple[Any, Any, Any]]


def rollout(
    env: Env, act: Act, start: Place, *, noise: Any, key: jax.Array, length: int, unroll: int = 1
) -> tuple[Place, Transition]:
    """Step every environment `length` times: the place to go on from, and the trajectory.

    `act(obs, memory, noise)` gives an action, what to store with it, and the next memory: `()` is one that remembers
    nothing. `noise` leads with time: it is drawn for all steps at once (or is one key per step), so that the loop
    itself holds as little work as can be.
    """

    def tick(here: Place, now: tuple[Any, jax.Array]) -> tuple[Place, Transition]:
        noise_t, key_t = now
        action, extra, memory = act(here.obs, here.memory, noise_t)
        env_state, ts = env.step(here.env, action, key_t)
        seen = Transition(here.obs, action, extra, ts.reward, ts.terminated, ts.truncated, ts.final_obs, ts.valid)
        if remembers:
            memory = forget(memory, seen.ended)
        return Place(env_state, ts.obs, memory), seen

    remembers = bool(jax.tree.leaves(start.memory))
    keys = jax.random.split(key, length)
    end, trajectory = jax.lax.scan(tick, start, (noise, keys), unroll=unroll)
    if remembers:
        began = jax.tree.map(lambda x: x[None], start.memory)
        trajectory = replace(trajectory, past=Past(began, trajectory.ended))
    return end, trajectory
