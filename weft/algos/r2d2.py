"""Recurrent replay distributed DQN (Kapturowski et al. 2019): Q-learning for what is not seen all at once.

The network has a memory, so it learns from sequences. Each begins with what the actor remembered there (the *stored
state*). That was another, older network's memory, so the first `burn_in` steps of a sequence are only gone through, to
arrive at a memory that the network itself might have; the `sequence` steps after them are learned from. A new sequence
begins every `period` steps, so that they overlap. Memories are lost where an episode ends, also inside a sequence.

Targets are n-step and double within the sequence. With `rescale` values are learned on another scale, instead of
clipping rewards. A sequence's priority is mostly that of its worst step: the mean would be much alike for all.

For exploration as in the paper, which every environment does in its own measure, set `epsilon=0.4 epsilon_spread=7`.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

import jax
import jax.numpy as jnp

from weft.algorithm import Play
from weft.algos.dqn import DQN
from weft.algos.learning import Learner, Loss
from weft.envs.timestep import Env
from weft.errors import WeftError
from weft.fragments import fragment
from weft.metrics import Mean
from weft.nets.recurrent_q import RecurrentQ
from weft.ops.actions import random_actions
from weft.ops.losses import average
from weft.ops.memory import Past, forget, initial, see, unroll
from weft.ops.n_step import at_step
from weft.ops.q_learning import chosen, greedy
from weft.ops.rollout import Transition
from weft.ops.sequences import n_step_each, priority, scale, unscale
from weft.replay.interface import TableSpec


@dataclass(frozen=True, kw_only=True)
class R2D2(DQN):
    """Q-learning with a memory, from sequences, for discrete actions."""

    num_envs: int = 16
    horizon: int = 8
    updates: int = 4
    batch_size: int = 32
    lr: float = 5e-4
    prioritised: bool = True
    priority_exponent: float = 0.9
    importance_exponent: float = 0.6
    hidden: tuple[int, ...] = (64,)
    max_grad_norm: float = 40.0
    memory: Literal["gru", "lstm"] = "lstm"
    """What the network remembers with."""
    memory_size: int = 64
    """How many numbers it remembers."""
    burn_in: int = 8
    """Steps at the beginning of a sequence that only bring the memory up to date."""
    sequence: int = 16
    """Steps after them that are learned from."""
    period: int = 8
    """Steps from the beginning of one sequence to that of the next."""
    rescale: bool = True
    """Whether values are learned on a scale that large ones are near to each other on."""
    priority_mix: float = 0.9
    """A sequence's priority is between the mean (0) and the maximum (1) of its steps' errors."""

    def __post_init__(self) -> None:
        if self.distributional:
            raise WeftError("r2d2 learns numbers, not distributions: leave distributional out")
        if self.sequence < 1 or self.burn_in < 0 or self.period < 1:
            given = f"sequence={self.sequence}, period={self.period} and burn_in={self.burn_in}"
            raise WeftError(f"{given}: a sequence and a period are at least 1 step, a burn-in at least 0")

    @property
    def item_length(self) -> int:
        return self.burn_in + self.sequence

    @property
    def table_spec(self) -> TableSpec:
        return replace(super().table_spec, period=self.period, mix=self.priority_mix if self.prioritised else 1.0)

    def build(self, env: Env, key: jax.Array) -> Any:
        names = ("hidden", "activation", "torso", "dueling", "memory", "memory_size")
        settings = {name: getattr(self, name) for name in names}
        return RecurrentQ(env.observation_space, env.action_space, key=key, **settings)

    @fragment
    def act(self, net: Any, obs: Any, memory: Any, noise: tuple[jax.Array, Any]) -> tuple[Any, Any, Any]:
        """Mostly what is worth most; the memory from before the step is kept with it."""
        after, seen = see(net, memory, obs)
        return super().act(net, seen, (), noise)[0], memory, after

    def player(self, env: Env, net: Any, *, greedy: bool) -> tuple[Any, Play]:
        share = 0.0 if greedy else self.epsilon

        def play(memory: Any, obs: Any, start: jax.Array, key: jax.Array) -> tuple[Any, Any]:
            key_where, key_what = jax.random.split(key)
            explores = jax.random.uniform(key_where, start.shape) < share
            drawn = random_actions(env.action_space, key_what, start.shape)
            action, _, memory = self.act(net, obs, forget(memory, start), (explores, drawn))
            return memory, action

        return initial(net, env.num_envs), play

    @fragment(name="act.errors")
    def errors(self, net: Any, target: Any, trajectory: Transition) -> jax.Array:
        """The error of every step by itself, with the memories that there were."""

        def around(net: Any) -> tuple[Any, Any]:
            memory, seen = see(net, trajectory.extra, trajectory.obs)
            return seen, see(net, memory, trajectory.final_obs)[1]

        return jnp.abs(self._errors(net, target, trajectory, around(net), around(target), n=1)[0]) + 1e-6

    def loss(self, net: Any, learner: Learner, items: Transition, weight: jax.Array, key: jax.Array) -> Loss:
        del key
        learned = jax.tree.map(lambda x: x[self.burn_in :], items)
        ours, theirs = (self._around(each, items) for each in (net, learner.target))
        error, value = self._errors(net, learner.target, learned, ours, theirs, n=self.n_step)
        loss, valid = 0.5 * jnp.square(error), learned.valid
        metrics = {"loss": Mean.of(loss, valid), "value": Mean.of(value, valid)}
        return average(Mean.of(weight * loss, valid)), (priority(error, valid, self.priority_mix) + 1e-6, metrics)

    def _around(self, net: Any, items: Transition) -> tuple[Any, Any]:
        """What is seen at every step that is learned from, and where it led."""
        memory = jax.tree.map(lambda x: x[0], items.extra)
        first, rest = (jax.tree.map(part, items) for part in (lambda x: x[: self.burn_in], lambda x: x[self.burn_in :]))
        if self.burn_in:
            _, after = unroll(net, first.obs, Past(_one_step(memory), first.ended))
            memory = forget(jax.tree.map(lambda x: x[-1], after), first.ended[-1])
        memory = jax.lax.stop_gradient(memory)
        seen, after = unroll(net, rest.obs, Past(_one_step(memory), rest.ended))
        return seen, see(net, after, rest.final_obs)[1]

    def _errors(
        self, net: Any, target: Any, steps: Transition, ours: tuple, theirs: tuple, *, n: int
    ) -> tuple[jax.Array, jax.Array]:
        """How far off every step is, and what it is thought to be worth; seen by the net, and by its target."""
        (seen, led_to), (_, led_to_theirs) = ours, theirs
        best = greedy(self.value(*((net, led_to) if self.double else (target, led_to_theirs))), net.allowed(led_to))
        after = chosen(target(led_to_theirs), best)[..., 0]
        ends = {"terminated": steps.terminated, "truncated": steps.truncated, "valid": steps.valid}
        ahead = n_step_each(steps.reward, **ends, gamma=self.gamma, n=n)
        after = jax.vmap(at_step, in_axes=(None, 0))(unscale(after) if self.rescale else after, ahead.last)
        goal = ahead.reward + ahead.discount * after
        value = chosen(net(seen), steps.action)[..., 0]
        return jax.lax.stop_gradient(scale(goal) if self.rescale else goal) - value, value


def _one_step(memory: Any) -> Any:
    return jax.tree.map(lambda x: x[None], memory)
