"""What off-policy algorithms share: collect, keep what was collected, learn from a random part of all that was kept.

A subclass gives `build` and `loss` (see `weft.algos.learning`), and how to act: `act`, and `noise` if that takes other
than what a policy draws by. If it can be `prioritised`, it also says how far off it is at every step that was
collected, by `errors`.
"""

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from weft.algos.learning import Learner, Learning
from weft.envs.timestep import Env
from weft.fragments import fragment
from weft.metrics import Mean
from weft.nets.encoder import mask_of
from weft.ops.actions import permitted, random_actions
from weft.ops.distributions import draw_noise
from weft.ops.memory import initial
from weft.ops.rollout import Place, Transition, rollout
from weft.replay.device import DeviceReplay
from weft.replay.host import HostReplay
from weft.replay.interface import Replay, ReplayKind, TableSpec


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class State:
    """Everything that one iteration hands to the next."""

    learner: Learner
    place: Place
    replay: Any
    row: jax.Array
    """The number of every environment."""
    iteration: jax.Array
    key: jax.Array

    @property
    def net(self) -> Any:
        return self.learner.net

    @property
    def env(self) -> Any:
        return self.place.env


@dataclass(frozen=True, kw_only=True)
class OffPolicy(Learning):
    """Settings and the loop around collecting and learning; abstract."""

    horizon: int = 1
    """Steps of every environment per iteration."""
    capacity: int = 100_000
    """Steps that are kept."""
    warm_up_steps: int = 1_000
    """Environment steps with random actions before the first gradient step."""
    replay: ReplayKind = "auto"
    """Where the table is: `auto` is on the device, or on the host where a layout is asynchronous."""
    n_step: int = 1
    """Rewards in a target before the value that it is completed by."""
    priority_exponent: float = 0.6
    """How much priorities matter for drawing, if items are drawn by them."""

    @property
    def warm_up_iterations(self) -> int:
        # At least one whole item must be there to learn from.
        needed = max(self.warm_up_steps, self.num_envs * self.item_length)
        return math.ceil(needed / (self.num_envs * self.horizon))

    @property
    def item_length(self) -> int:
        """Steps of what is sampled."""
        return self.n_step

    @property
    def table_spec(self) -> TableSpec:
        """The size of the replay table, and how it is sampled."""
        sampler = f"prioritised:{self.priority_exponent}" if self.prioritised else "uniform"
        return TableSpec(capacity=self.capacity, rows=self.num_envs, length=self.item_length, sampler=sampler)

    @property
    def table(self) -> Replay:
        return HostReplay(self.table_spec) if self.replay == "host" else DeviceReplay(self.table_spec)

    def settle(self, *, asynchronous: bool) -> "OffPolicy":
        return replace(self, replay="host" if asynchronous else "device") if self.replay == "auto" else self

    def init(self, env: Env, key: jax.Array) -> State:
        key_net, key_env, key_replay, key = jax.random.split(key, 4)
        learner = self.beginner(env, key_net)
        env_state, obs = env.reset(key_env)
        place = Place(env_state, obs, initial(learner.net, env.num_envs))
        row = jnp.arange(env.num_envs, dtype=jnp.int32)
        state = State(learner, place, None, row, jnp.zeros((), jnp.int32), key)
        step = jax.eval_shape(lambda: jax.tree.map(lambda x: x[0], self._collect(env, state, key, random=False)[1]))
        return replace(state, replay=self.table.init(step, key_replay))

    def warm_up(self, env: Env, state: State) -> tuple[State, dict[str, Mean]]:
        return self._gather(env, state, random=True)

    def step(self, env: Env, state: State) -> tuple[State, dict[str, Mean]]:
        state, episodes = self._gather(env, state, random=False)
        key, key_learn = jax.random.split(state.key)
        learner, replay, metrics = self.improve(env, self.table, state.learner, state.replay, key_learn)
        return replace(state, learner=learner, replay=replay, key=key), episodes | metrics

    @fragment(name="act.noise")
    def noise(self, env: Env, row: jax.Array, iteration: jax.Array, key: jax.Array) -> Any:
        """All the randomness of acting in one iteration, leaves [horizon, B, ...]."""
        del row, iteration
        return draw_noise(env.action_space, key, (self.horizon, env.num_envs))

    @abstractmethod
    def act(self, net: Any, obs: Any, memory: Any, noise: Any) -> tuple[Any, Any, Any]:
        """Actions, what to keep with them, and the next memory. A fragment."""

    @abstractmethod
    def errors(self, net: Any, target: Any, trajectory: Transition) -> jax.Array:
        """How far off the net is at every step of a trajectory, [T, B]: first priorities. A fragment `act.errors`."""

    def _gather(self, env: Env, state: State, *, random: bool) -> tuple[State, dict[str, Mean]]:
        """Step the environments and keep what was seen."""
        key, key_collect = jax.random.split(state.key)
        here, trajectory = self._collect(env, state, key_collect, random=random)
        learner = state.learner
        errors = self.errors(learner.net, learner.target, trajectory) if self.prioritised else None
        replay = self.table.insert(state.replay, state.row, trajectory, errors)
        env_state, episodes = env.episodes(here.env)
        place = replace(here, env=env_state)
        return replace(state, place=place, replay=replay, iteration=state.iteration + 1, key=key), episodes

    def _collect(self, env: Env, state: State, key: jax.Array, *, random: bool) -> tuple[Place, Transition]:
        key_act, key_env = jax.random.split(key)

        def act(obs: Any, memory: Any, noise: Any) -> tuple[Any, Any, Any]:
            action, extra, memory = self.act(state.learner.net, obs, memory, noise[0])
            if random:
                action = permitted(env.action_space, noise[1], mask_of(env.observation_space, obs))
            return action, extra, memory

        noise = self.noise(env, state.row, state.iteration, key_act)
        drawn = self.random(env, key_act) if random else ()
        here, seen = rollout(env, act, state.place, noise=(noise, drawn), key=key_env, length=self.horizon)
        # An item begins anywhere: who needs the memory from before a step keeps it with the step, in `extra`.
        return here, replace(seen, past=None)

    @fragment(name="act.random")
    def random(self, env: Env, key: jax.Array) -> Any:
        """Actions of the warm-up, before any is ruled out."""
        return random_actions(env.action_space, key, (self.horizon, env.num_envs))
