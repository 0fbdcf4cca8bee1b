"""The one loop that collects experience: act, step, remember."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from weft.envs.timestep import Env


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Transition:
    """One step of every environment, leaves [B, ...]; or with a leading time axis a trajectory, leaves [T, B, ...].

    `extra` is whatever acting gave beside the action. `final_obs` is where the step led, also where an episode ended.
    """

    obs: Any
    action: Any
    extra: Any
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    final_obs: Any
    valid: jax.Array


Act = Callable[[Any, Any], tuple[Any, Any]]


def rollout(
    env: Env, act: Act, *, env_state: Any, obs: Any, noise: Any, key: jax.Array, length: int, unroll: int = 1
) -> tuple[Any, Any, Transition]:
    """Step every environment `length` times: the environments' state, the observations to go on from, the trajectory.

    `act(obs, noise)` gives an action and what to remember with it. Its `noise` leads with time: it is drawn for all
    steps at once (or is one key per step), so that the loop itself holds as little work as can be.
    """

    def tick(carry: tuple[Any, Any], now: tuple[Any, jax.Array]) -> tuple[tuple[Any, Any], Transition]:
        env_state, obs = carry
        noise_t, key_t = now
        action, extra = act(obs, noise_t)
        env_state, ts = env.step(env_state, action, key_t)
        seen = Transition(obs, action, extra, ts.reward, ts.terminated, ts.truncated, ts.final_obs, ts.valid)
        return (env_state, ts.obs), seen

    keys = jax.random.split(key, length)
    (env_state, obs), trajectory = jax.lax.scan(tick, (env_state, obs), (noise, keys), unroll=unroll)
    return env_state, obs, trajectory
