"""What off-policy algorithms share: collect, keep what was collected, learn from a random part of all that was kept.

A subclass gives `build`, `noise`, `act`, `errors` and `gradient`, and may be read with only this in mind: `gradient`
gets items drawn from the table, leaves [n, B, ...]: n steps that follow each other, through the ends of episodes. It
gives the gradient of a loss, and how far off each item was: its next priority.
"""

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any, cast

import jax
import jax.numpy as jnp
import optax

from weft.algorithm import Algorithm
from weft.envs.timestep import Env
from weft.errors import WeftError
from weft.fragment import all_mean, fragment
from weft.metrics import Mean
from weft.nets.encoder import TorsoKind
from weft.nets.mlp import Activation
from weft.ops.actions import random_actions
from weft.ops.memory import initial
from weft.ops.rollout import Place, Transition, rollout
from weft.replay.device import DeviceReplay
from weft.replay.experience import Batch, Kept, Replay, ReplayKind
from weft.replay.hosted import HostReplay


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Learner:
    """What learning changes."""

    net: Any
    target: Any
    """An earlier `net`, which targets are computed with."""
    opt: optax.OptState
    updates: jax.Array
    """How many there were."""


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


@dataclass(frozen=True, kw_only=True)
class OffPolicy(Algorithm):
    """Settings and the loop around `gradient`; abstract."""

    num_envs: int = 8
    horizon: int = 1
    """Steps of every environment per iteration."""
    updates: int = 8
    """Gradient steps per iteration."""
    batch_size: int = 64
    """Items per gradient step."""
    capacity: int = 100_000
    """Steps that are kept."""
    warm_up_steps: int = 1_000
    """Environment steps with random actions before the first gradient step."""
    replay: ReplayKind = "auto"
    """Where the table is: `auto` is on the device, or on the host where a layout is asynchronous."""
    n_step: int = 1
    """Rewards in a target before the value that it is completed by."""
    prioritised: bool = False
    """Whether items are drawn by how far off they were when last seen."""
    priority_exponent: float = 0.6
    """How much that matters for drawing."""
    importance_exponent: float = 0.4
    """How much of the bias that it brings is taken back."""
    hidden: tuple[int, ...] = (128, 128)
    """Widths of the hidden layers."""
    activation: Activation = "relu"
    """What follows every hidden layer."""
    torso: TorsoKind = "auto"
    """What comes before the hidden layers: `auto` is what the observations ask for."""
    gamma: float = 0.99
    """Discount per step."""
    lr: float = 1e-3
    """Step size."""
    max_grad_norm: float = 10.0
    """Gradients longer than this are shortened to it."""
    target_mix: float = 1.0
    """How much of the target network is replaced when it is."""
    target_period: int = 1
    """Gradient steps from one replacement to the next."""

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
    def table(self) -> Replay:
        kept = Kept(
            capacity=self.capacity,
            rows=self.num_envs,
            length=self.item_length,
            exponent=self.priority_exponent if self.prioritised else None,
        )
        return HostReplay(kept) if self.replay == "host" else DeviceReplay(kept)

    def settle(self, *, asynchronous: bool) -> "OffPolicy":
        return replace(self, replay="host" if asynchronous else "device") if self.replay == "auto" else self

    def init(self, env: Env, key: jax.Array) -> State:
        key_net, key_env, key_replay, key = jax.random.split(key, 4)
        net = self.build(env, key_net)
        env_state, obs = env.reset(key_env)
        place, zero = Place(env_state, obs, initial(net, env.num_envs)), jnp.zeros((), jnp.int32)
        learner = Learner(net, jax.tree.map(jnp.copy, net), self._optimiser().init(cast(optax.Params, net)), zero)
        row = jnp.arange(env.num_envs, dtype=jnp.int32)
        state = State(learner, place, None, row, zero, key)
        step = jax.eval_shape(lambda: jax.tree.map(lambda x: x[0], self._collect(env, state, key, random=False)[1]))
        return replace(state, replay=self.table.init(step, key_replay))

    def warm_up(self, env: Env, state: State) -> tuple[State, dict[str, Mean]]:
        return self._gather(env, state, random=True)

    def step(self, env: Env, state: State) -> tuple[State, dict[str, Mean]]:
        state, episodes = self._gather(env, state, random=False)
        key, key_learn = jax.random.split(state.key)
        size, rest = divmod(self.batch_size * env.num_envs, self.num_envs)
        if rest:
            raise WeftError(
                f"batch_size={self.batch_size} cannot be shared out like {self.num_envs} environments, {env.num_envs} "
                "to a replica: make it a multiple of the replicas"
            )

        def update(carry: tuple[Learner, Any], key: jax.Array) -> tuple[tuple[Learner, Any], dict[str, Mean]]:
            (learner, replay), (key_sample, key_update) = carry, jax.random.split(key)
            replay, batch = self.table.sample(replay, key_sample, size)
            learner, priority, metrics = self.learn(learner, batch, key_update)
            if self.prioritised:
                replay = self.table.update(replay, batch.key, priority)
            return (learner, replay), metrics

        keys = jax.random.split(key_learn, self.updates)
        (learner, replay), metrics = jax.lax.scan(update, (state.learner, state.replay), keys)
        state = replace(state, learner=learner, replay=replay, key=key)
        return state, episodes | jax.tree.map(lambda x: jnp.sum(x, axis=0), metrics)

    @abstractmethod
    def build(self, env: Env, key: jax.Array) -> Any:
        """The network that is trained."""

    @abstractmethod
    def noise(self, env: Env, row: jax.Array, iteration: jax.Array, key: jax.Array) -> Any:
        """All the randomness of acting in one iteration, leaves [horizon, B, ...]. A fragment `act.noise`."""

    @abstractmethod
    def act(self, net: Any, obs: Any, memory: Any, noise: Any) -> tuple[Any, Any, Any]:
        """Actions, what to keep with them, and the next memory. A fragment."""

    @abstractmethod
    def errors(self, net: Any, target: Any, trajectory: Transition) -> jax.Array:
        """How far off the net is at every step of a trajectory, [T, B]: first priorities. A fragment `act.errors`."""

    @abstractmethod
    def gradient(self, learner: Learner, items: Transition, weight: jax.Array, key: jax.Array) -> Any:
        """The gradient, how far off each item was, and metrics. A fragment."""

    @fragment
    def learn(self, learner: Learner, batch: Batch, key: jax.Array) -> tuple[Learner, jax.Array, dict[str, Mean]]:
        """One gradient step, how far off each item was, and metrics."""
        weight = jnp.ones_like(batch.probability)
        if self.prioritised:
            # Relative to the least likely item of the batch, so that weights only ever shorten steps.
            rare = batch.probability / jnp.min(batch.probability)
            weight = jnp.power(rare, -self.importance_exponent)
        grads, errors, metrics = self.gradient(learner, batch.steps, weight, key)
        learner = self.update(learner, all_mean(grads))
        return learner, errors + 1e-6, metrics

    @fragment
    def update(self, learner: Learner, grads: Any) -> Learner:
        """One optimiser step, and one of the target network."""
        steps, opt = self._optimiser().update(grads, learner.opt, learner.net)
        net = cast(Any, optax.apply_updates(learner.net, steps))
        count = learner.updates + 1
        mix = jnp.where(count % self.target_period == 0, self.target_mix, 0.0)
        target = jax.tree.map(lambda new, old: old + mix * (new - old), net, learner.target)
        return Learner(net, target, opt, count)

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
            return noise[1] if random else action, extra, memory

        noise = self.noise(env, state.row, state.iteration, key_act)
        drawn = self.random(env, key_act) if random else ()
        return rollout(env, act, state.place, noise=(noise, drawn), key=key_env, length=self.horizon)

    @fragment(name="act.random")
    def random(self, env: Env, key: jax.Array) -> Any:
        """Actions of the warm-up."""
        return random_actions(env.action_space, key, (self.horizon, env.num_envs))

    def _optimiser(self) -> optax.GradientTransformation:
        return optax.chain(optax.clip_by_global_norm(self.max_grad_norm), optax.adam(self.lr))
