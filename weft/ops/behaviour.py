"""Acting with a behaviour policy: rollouts for a replay table, and evaluation."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import gymnasium as gym
import jax
import jax.numpy as jnp

from weft.envs.spaces import mask_of
from weft.envs.timestep import Env
from weft.fragments import fragment
from weft.ops.actions import apply_mask, random_actions
from weft.ops.distributions import draw_noise
from weft.ops.rollout import Act, RolloutState, Transition, rollout


class ActingNoise(NamedTuple):
    """All randomness of acting in one rollout; leaves [T, B, ...]."""

    policy: Any
    """What the behaviour policy takes."""
    random_action: Any = None
    """Actions to take in place of the policy's, if given."""


def behaviour_rollout(
    env: Env, act: Act, start: RolloutState, *, noise: ActingNoise, key: jax.Array, length: int
) -> tuple[RolloutState, Transition]:
    """A rollout of the behaviour policy, or of random actions if the noise has any; action masks hold for both."""

    def act_or_random(obs: Any, memory: Any, noise_t: ActingNoise) -> tuple[Any, Any, Any]:
        action, extra, memory = act(obs, memory, noise_t.policy)
        if noise.random_action is not None:
            mask = mask_of(env.observation_space, obs)
            action = apply_mask(env.action_space, noise_t.random_action, mask)
        return action, extra, memory

    end, trajectory = rollout(env, act_or_random, start, noise=noise, key=key, length=length)
    # An item of a table may begin at any step, so memories are stored with the steps, in `extra`.
    return end, replace(trajectory, past=None)


@fragment(name="act.random")
def random_rollout_actions(env: Env, key: jax.Array, length: int) -> Any:
    """Random actions for a rollout, before action masks are applied."""
    return random_actions(env.action_space, key, (length, env.num_envs))


def play_with(act: Act, space: gym.Space, *, greedy: bool) -> Callable[..., tuple[Any, Any]]:
    """A `weft.algorithm.Play` that acts by a policy without memory; greedily by setting its noise to 0."""

    def play(memory: Any, obs: Any, start: jax.Array, key: jax.Array) -> tuple[Any, Any]:
        noise = draw_noise(space, key, start.shape)
        return memory, act(obs, memory, jax.tree.map(jnp.zeros_like, noise) if greedy else noise)[0]

    return play
