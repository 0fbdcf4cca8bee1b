"""The base of off-policy algorithms: collect transitions into a replay table, then learn from batches sampled from it.

An algorithm defines its networks (`build`), behaviour policy (`act`, with `acting_noise` for noise of its own), `loss`,
and `initial_priorities` for prioritised replay. One with a `source` collects nothing: its table is a recorded dataset.
"""

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from weft.algorithm import Algorithm, Play, name_of
from weft.datasets.batches import DatasetSource
from weft.envs.timestep import Env
from weft.errors import WeftError
from weft.fragments import all_mean, fragment
from weft.metrics import Mean
from weft.nets.encoder import TorsoKind
from weft.nets.mlp import Activation
from weft.ops.batches import batch_shape, importance_weights
from weft.ops.behaviour import ActingNoise, behaviour_rollout, play_with, random_rollout_actions
from weft.ops.distributions import draw_noise
from weft.ops.memory import initial_memory
from weft.ops.rollout import RolloutState, Transition, as_transition
from weft.ops.updates import Learned, LearnerState, Loss, clipped_adam, learn_from_table
from weft.replay.device import DeviceReplay
from weft.replay.host import HostReplay
from weft.replay.interface import Batch, Replay, ReplayKind, TableSpec


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class State:
    """What one iteration passes to the next. Without collecting there are only learner, replay and key."""

    learner: LearnerState
    rollout: Any  # a RolloutState
    replay: Any
    row: Any  # the index of every environment, [B]
    iteration: Any
    key: jax.Array
    net = property(lambda self: self.learner.net)
    env = property(lambda self: self.rollout and self.rollout.env)


@dataclass(frozen=True, kw_only=True)
class OffPolicy(Algorithm):
    """Settings, and the loop around `act` and `loss`; abstract."""

    num_envs: int = 8
    horizon: int = 1  # steps of every environment per iteration
    capacity: int = 100_000  # steps that the replay table holds
    warm_up_steps: int = 1_000  # environment steps with random actions before the first gradient step
    replay: ReplayKind = "auto"  # where the table is: auto is on the host under asynchronous layouts, else the device
    updates: int = 8  # gradient steps per iteration
    batch_size: int = 64  # items per gradient step
    n_step: int = 1  # rewards in a return before the bootstrap value
    prioritised: bool = False  # whether items are sampled by their last error
    priority_exponent: float = 0.6  # alpha: items are sampled in proportion to their priority to this power
    importance_exponent: float = 0.4  # beta: how much of the bias of prioritised sampling is corrected
    hidden: tuple[int, ...] = (128, 128)  # widths of the hidden layers
    activation: Activation = "relu"  # of the hidden layers
    torso: TorsoKind = "auto"  # the encoder before the hidden layers; auto depends on the observation space
    gamma: float = 0.99  # discount factor
    lr: float = 1e-3  # step size
    max_grad_norm: float = 10.0  # gradients are clipped to this global norm
    tau: float = 1.0  # how far each target network update moves towards the network; 1 copies it
    target_period: int = 1  # gradient steps between target network updates

    def __post_init__(self) -> None:
        if self.prioritised and self.source:
            raise WeftError("the steps of a dataset are all drawn alike: leave prioritised out")

    @abstractmethod
    def build(self, env: Env, key: jax.Array) -> Any:
        """The networks that are trained."""

    @abstractmethod
    def act(self, net: Any, obs: Any, memory: Any, noise: Any) -> tuple[Any, Any, Any]:
        """The behaviour policy: actions, `Transition.extra`, the next memory. A fragment."""

    @abstractmethod
    def loss(self, net: Any, learner: LearnerState, items: Transition, weight: jax.Array, key: jax.Array) -> Loss:
        """The loss of `net`, of which `learner.net` is a fixed copy. Items are n steps, [n, B, ...]; `weight`: [B]."""

    def initial_priorities(self, net: Any, target: Any, trajectory: Transition) -> jax.Array:
        """The error of every collected step, [T, B]. A fragment `act.priorities`."""
        raise WeftError(f"{name_of(self)} does not define `initial_priorities`: leave prioritised out")

    @property
    def source(self) -> DatasetSource | None:
        """The dataset to learn from; None collects transitions."""

    @property
    def item_length(self) -> int:
        return self.n_step

    @property
    def table_spec(self) -> TableSpec:
        """What the replay table holds, and how it is sampled."""
        sampler = f"prioritised:{self.priority_exponent}" if self.prioritised else "uniform"
        return TableSpec(capacity=self.capacity, rows=self.num_envs, length=self.item_length, sampler=sampler)

    @property
    def table(self) -> Replay:
        """The functions of the table; its contents are in the state."""
        if self.source:
            return self.source.table
        return HostReplay(self.table_spec) if self.replay == "host" else DeviceReplay(self.table_spec)

    def resolve(self, *, asynchronous: bool) -> "OffPolicy":
        return replace(self, replay="host" if asynchronous else "device") if self.replay == "auto" else self

    @property
    def steps_per_iteration(self) -> int | None:
        return self.updates * self.batch_size if self.source else None

    @property
    def warm_up_iterations(self) -> int:
        steps = 0 if self.source else max(self.warm_up_steps, self.num_envs * self.item_length)  # at least one item
        return math.ceil(steps / (self.num_envs * self.horizon)) if steps else 0

    def init(self, env: Env, key: jax.Array) -> State:
        if self.source:
            key_net, key_replay, key = jax.random.split(key, 3)
            replay = self.source.init(env, key_replay, algorithm=name_of(self))
            return State(self.new_learner(env, key_net), None, replay, None, None, key)
        key_net, key_env, key_replay, key = jax.random.split(key, 4)
        learner, (env_state, obs) = self.new_learner(env, key_net), env.reset(key_env)
        start = RolloutState(env_state, obs, initial_memory(learner.net, env.num_envs))
        state = State(learner, start, None, jnp.arange(env.num_envs, dtype=jnp.int32), jnp.zeros((), jnp.int32), key)
        step = jax.eval_shape(lambda: jax.tree.map(lambda x: x[0], self.interact(env, state, key, random=False)[1]))
        return replace(state, replay=self.table.init(step, key_replay))

    def new_learner(self, env: Env, key: jax.Array) -> LearnerState:
        return LearnerState.start(self.build(env, key), self.make_optimiser())

    def warm_up(self, env: Env, state: State) -> tuple[State, dict[str, Mean]]:
        return self.collect(env, state, random=True)

    def step(self, env: Env, state: State) -> tuple[State, dict[str, Mean]]:
        state, episodes = (state, {}) if self.source else self.collect(env, state, random=False)
        key, key_learn = jax.random.split(state.key)
        shape = batch_shape(self.batch_size, num_envs=env.num_envs, total_envs=self.num_envs)
        loop = partial(learn_from_table, updates=self.updates, shape=shape, prioritised=self.prioritised)
        learner, replay, metrics = loop(self.table, self.learn, state.learner, state.replay, key_learn)
        return replace(state, learner=learner, replay=replay, key=key), episodes | metrics

    def collect(self, env: Env, state: State, *, random: bool) -> tuple[State, dict[str, Mean]]:
        """Step the environments and insert the transitions into the table."""
        key, key_collect = jax.random.split(state.key)
        end, trajectory = self.interact(env, state, key_collect, random=random)
        priorities = self.initial_priorities(state.net, state.learner.target, trajectory) if self.prioritised else None
        replay = self.table.insert(state.replay, state.row, trajectory, priorities)
        env_state, episodes = env.episodes(end.env)
        end = replace(end, env=env_state)
        return replace(state, rollout=end, replay=replay, iteration=state.iteration + 1, key=key), episodes

    def interact(self, env: Env, state: State, key: jax.Array, *, random: bool) -> tuple[RolloutState, Transition]:
        """A rollout of the behaviour policy, or of random actions."""
        key_act, key_env = jax.random.split(key)
        policy_noise = self.acting_noise(env, state.row, state.iteration, key_act)
        noise = ActingNoise(policy_noise, random_rollout_actions(env, key_act, self.horizon) if random else None)
        act = partial(self.act, state.net)
        return behaviour_rollout(env, act, state.rollout, noise=noise, key=key_env, length=self.horizon)

    @fragment(name="act.noise")
    def acting_noise(self, env: Env, row: Any, iteration: Any, key: jax.Array) -> Any:
        """The noise of `act` for one iteration, leaves [horizon, B, ...]."""
        return draw_noise(env.action_space, key, (self.horizon, env.num_envs))

    def player(self, env: Env, net: Any, *, greedy: bool) -> tuple[Any, Play]:
        return (), play_with(partial(self.act, net), env.action_space, greedy=greedy)

    @fragment
    def learn(self, learner: LearnerState, batch: Batch, key: jax.Array) -> Learned:
        """One gradient step; returns the new state, the error of every item, and metrics."""
        items = batch.flattened
        weight = importance_weights(items.probability, self.importance_exponent if self.prioritised else None)
        grads, errors, metrics = self.gradient(learner, as_transition(items.steps), weight, key)
        return self.update(learner, all_mean(grads)), errors.reshape(batch.shape), metrics

    @fragment
    def gradient(self, learner: LearnerState, items: Transition, weight: jax.Array, key: jax.Array) -> Any:
        """The gradient of the loss, the error of every item, and metrics."""
        grads, aux = jax.grad(self.loss, has_aux=True)(learner.net, learner, items, weight, key)
        return grads, *aux

    @fragment
    def update(self, learner: LearnerState, grads: Any) -> LearnerState:
        """One optimiser step, and a target network update every `target_period` steps."""
        return learner.apply(grads, self.make_optimiser(), tau=self.tau, target_period=self.target_period)

    def make_optimiser(self) -> optax.GradientTransformation:
        return clipped_adam(self.lr, self.max_grad_norm)
