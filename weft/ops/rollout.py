"""The loop that collects experience: act, step the environments, store the transition."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from weft.envs.timestep import Env
from weft.ops.memory import Past, forget, step_memory
from weft.ops.memory import unroll as unroll_memory


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class RolloutState:
    """Where a rollout continues: the environments' state, their observations, the policy's memory; leaves [B, ...]."""

    env: Any
    obs: Any
    memory: Any = ()


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Transition:
    """One step of every environment, leaves [B, ...]; with a leading time axis a trajectory, leaves [T, B, ...]."""

    obs: Any
    action: Any
    extra: Any
    """What the policy returned to be stored with the action, such as the distribution that it was drawn from."""
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    final_obs: Any
    """The observation that the step led to; where an episode ended, its last observation."""
    valid: jax.Array
    """False for the rows that an autoreset inserts: they are no step of an episode."""
    past: Past | None = None
    """In trajectories of recurrent networks: what it takes to unroll the network over the trajectory again."""

    @property
    def ended(self) -> jax.Array:
        """Whether the next row belongs to another episode, so that the memory has to be reset."""
        # A row that an autoreset inserted is always followed by a new episode.
        return self.terminated | self.truncated | ~self.valid

    @property
    def ends(self) -> dict[str, Any]:
        """The arguments by which functions of returns find the ends of episodes."""
        return {"terminated": self.terminated, "truncated": self.truncated, "valid": self.valid}


Act = Callable[[Any, Any, Any], tuple[Any, Any, Any]]


def rollout(
    env: Env, act: Act, start: RolloutState, *, noise: Any, key: jax.Array, length: int, unroll: int = 1
) -> tuple[RolloutState, Transition]:
    """Step every environment `length` times; returns the state to continue from and the trajectory.

    `act(obs, memory, noise)` returns the action, `Transition.extra`, and the next memory (`()` for a policy without
    one). `noise` has time as its first axis: it is drawn for all steps at once, or holds one key per step, so that
    the loop itself does little work.
    """

    def step(state: RolloutState, inputs: tuple[Any, jax.Array]) -> tuple[RolloutState, Transition]:
        noise_t, key_t = inputs
        action, extra, memory = act(state.obs, state.memory, noise_t)
        env_state, ts = env.step(state.env, action, key_t)
        transition = Transition(
            state.obs, action, extra, ts.reward, ts.terminated, ts.truncated, ts.final_obs, ts.valid
        )
        if recurrent:
            memory = forget(memory, transition.ended)
        return RolloutState(env_state, ts.obs, memory), transition

    recurrent = bool(jax.tree.leaves(start.memory))
    keys = jax.random.split(key, length)
    end, trajectory = jax.lax.scan(step, start, (noise, keys), unroll=unroll)
    if recurrent:
        first_memory = jax.tree.map(lambda x: x[None], start.memory)
        trajectory = replace(trajectory, past=Past(first_memory, trajectory.ended))
    return end, trajectory


def state_values(net: Any, trajectory: Transition) -> tuple[Any, jax.Array, jax.Array]:
    """The network's inputs at every step, the values of these states, and of the states that the steps led to.

    The inputs are what `net.policy` and `net.value` take (see `weft.ops.memory`); values are [T, B].
    """
    inputs, memory = unroll_memory(net, trajectory.obs, trajectory.past)
    _, final_inputs = step_memory(net, memory, trajectory.final_obs)
    return inputs, net.value(inputs), net.value(final_inputs)


def as_transition(steps: Any) -> Transition:
    """Steps of a replay table or of a dataset as transitions; a dataset has columns, without `extra` and `valid`."""
    if isinstance(steps, Transition):
        return steps
    return Transition(**steps, extra=(), valid=jnp.ones_like(steps["terminated"]))
