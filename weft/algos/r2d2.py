"""R2D2: Kapturowski et al. 2019, "Recurrent Experience Replay in Distributed Reinforcement Learning".

Q-learning with a recurrent network, on sequences of steps. Each sequence is stored with the actor's memory at its start
(the stored state). The actor's network was an older one, so the first `burn_in` steps only unroll the network to
produce a recent memory; the `sequence` steps after them are learned from. Sequences start every `period` steps, so they
overlap, and may cross ends of episodes, where the memory is reset.

For the paper's exploration, with a different rate in every environment, set `epsilon=0.4 epsilon_spread=7`.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

import jax
import jax.numpy as jnp

from weft.algorithm import Play
from weft.algos.off_policy import OffPolicy
from weft.envs.timestep import Env
from weft.errors import WeftError
from weft.fragments import fragment
from weft.metrics import Mean
from weft.nets.recurrent_q import RecurrentQ
from weft.ops.actions import EpsilonGreedyNoise, epsilon_greedy, epsilon_greedy_noise, exploration_rate
from weft.ops.losses import average, means
from weft.ops.memory import Past, forget, initial_memory, step_memory, unroll
from weft.ops.n_step import at_step, first_step
from weft.ops.q_learning import chosen, greedy
from weft.ops.rollout import Transition
from weft.ops.sequences import n_step_each, scale, sequence_priority, unscale
from weft.ops.updates import LearnerState, Loss
from weft.replay.interface import TableSpec

NetInputs = tuple[Any, Any]
"""The network's inputs at every step of a sequence, and in the states that the steps led to."""


@dataclass(frozen=True, kw_only=True)
class R2D2(OffPolicy):
    """Recurrent Q-learning from sequences, for discrete actions."""

    num_envs: int = 16
    horizon: int = 8
    updates: int = 4
    batch_size: int = 32
    n_step: int = 5
    lr: float = 5e-4
    target_period: int = 500
    prioritised: bool = True
    priority_exponent: float = 0.9
    importance_exponent: float = 0.6
    hidden: tuple[int, ...] = (64,)
    max_grad_norm: float = 40.0
    double: bool = True  # whether the network selects the action that the target network evaluates
    dueling: bool = False  # whether Q-values are the sum of a state value and advantages
    epsilon: float = 0.05  # final exploration rate
    epsilon_steps: int = 20_000  # environment steps over which the exploration rate decays linearly from 1
    epsilon_spread: float = 0.0  # the last environment's final exploration rate is epsilon to the power 1 + this
    memory: Literal["gru", "lstm"] = "lstm"  # the recurrent cell
    memory_size: int = 64  # units of the recurrent cell
    burn_in: int = 8  # steps at the start of a sequence that only update the memory
    sequence: int = 16  # steps after the burn-in that are learned from
    period: int = 8  # steps from the start of one sequence to the start of the next
    rescale: bool = True  # whether Q-values are learned on the scale h(x)
    priority_mix: float = 0.9  # eta: the weight of the largest error in a sequence's priority, against the mean error

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sequence < 1 or self.burn_in < 0 or self.period < 1:
            settings = f"sequence={self.sequence}, period={self.period} and burn_in={self.burn_in}"
            raise WeftError(f"{settings}: sequence and period must be at least 1, burn_in at least 0")

    @property
    def item_length(self) -> int:
        return self.burn_in + self.sequence

    @property
    def table_spec(self) -> TableSpec:
        return replace(super().table_spec, period=self.period, mix=self.priority_mix if self.prioritised else 1.0)

    def build(self, env: Env, key: jax.Array) -> RecurrentQ:
        """Q, with a memory."""
        layers: dict[str, Any] = {"hidden": self.hidden, "activation": self.activation, "torso": self.torso}
        cell: dict[str, Any] = {"memory": self.memory, "memory_size": self.memory_size}
        spaces = env.observation_space, env.action_space
        return RecurrentQ(*spaces, key=key, dueling=self.dueling, **layers, **cell)

    @fragment(name="act.noise")
    def acting_noise(self, env: Env, row: jax.Array, iteration: jax.Array, key: jax.Array) -> EpsilonGreedyNoise:
        schedule = {"decay_steps": self.epsilon_steps, "spread": self.epsilon_spread, "num_envs": self.num_envs}
        epsilon = exploration_rate(iteration * self.horizon * self.num_envs, row, final=self.epsilon, **schedule)
        return epsilon_greedy_noise(env.action_space, key, (self.horizon, env.num_envs), epsilon)

    @fragment
    def act(self, net: RecurrentQ, obs: Any, memory: Any, noise: EpsilonGreedyNoise) -> tuple[Any, Any, Any]:
        """The epsilon-greedy behaviour policy; stores the memory from before the step."""
        next_memory, inputs = step_memory(net, memory, obs)
        return epsilon_greedy(net(inputs)[..., 0], net.allowed(inputs), noise), memory, next_memory

    def loss(
        self, net: RecurrentQ, learner: LearnerState, items: Transition, weight: jax.Array, key: jax.Array
    ) -> Loss:
        """Half the squared temporal-difference error of every step after the burn-in."""
        del key
        steps = jax.tree.map(lambda x: x[self.burn_in :], items)
        inputs, target_inputs = self.unroll(net, items), self.unroll(learner.target, items)
        error, q = self.td_errors(net, learner.target, steps, inputs, target_inputs, n=self.n_step)
        loss, valid = 0.5 * jnp.square(error), steps.valid
        priority = sequence_priority(error, valid, self.priority_mix) + 1e-6
        return average(Mean.of(weight * loss, valid)), (priority, means({"loss": loss, "value": q}, valid))

    def unroll(self, net: RecurrentQ, items: Transition) -> NetInputs:
        """The network's inputs after the burn-in, from the stored memory; without gradients to the burn-in."""
        memory = first_step(items.extra)
        burn_in = jax.tree.map(lambda x: x[: self.burn_in], items)
        steps = jax.tree.map(lambda x: x[self.burn_in :], items)
        if self.burn_in:
            _, memories = unroll(net, burn_in.obs, Past(_add_time_axis(memory), burn_in.ended))
            memory = forget(jax.tree.map(lambda x: x[-1], memories), burn_in.ended[-1])
        memory = jax.lax.stop_gradient(memory)
        inputs, memories = unroll(net, steps.obs, Past(_add_time_axis(memory), steps.ended))
        return inputs, step_memory(net, memories, steps.final_obs)[1]

    def td_errors(
        self, net: RecurrentQ, target: RecurrentQ, steps: Transition, own: NetInputs, targets: NetInputs, *, n: int
    ) -> tuple[jax.Array, jax.Array]:
        """The n-step temporal-difference error and Q(s, a) of every step (section 2.3).

        y = h(r + ... + gamma^n h^-1(Q'(s', argmax_a Q(s', a)))). `own` and `targets` are the inputs of `net` and
        of `target`.
        """
        (inputs, next_inputs), (_, next_target_inputs) = own, targets
        selector, selector_inputs = (net, next_inputs) if self.double else (target, next_target_inputs)
        best = greedy(selector(selector_inputs)[..., 0], net.allowed(next_inputs))
        q_t = chosen(target(next_target_inputs), best)[..., 0]
        n_steps = n_step_each(steps.reward, **steps.ends, gamma=self.gamma, n=n)
        q_t = jax.vmap(at_step, in_axes=(None, 0))(unscale(q_t) if self.rescale else q_t, n_steps.last)
        y = n_steps.bootstrap(q_t)
        q = chosen(net(inputs), steps.action)[..., 0]
        return jax.lax.stop_gradient(scale(y) if self.rescale else y) - q, q

    @fragment(name="act.priorities")
    def initial_priorities(self, net: RecurrentQ, target: RecurrentQ, trajectory: Transition) -> jax.Array:
        """The one-step error of every step, with the actor's memories."""

        def inputs_of(net: RecurrentQ) -> NetInputs:
            memory, inputs = step_memory(net, trajectory.extra, trajectory.obs)
            return inputs, step_memory(net, memory, trajectory.final_obs)[1]

        error, _ = self.td_errors(net, target, trajectory, inputs_of(net), inputs_of(target), n=1)
        return jnp.abs(error) + 1e-6

    def player(self, env: Env, net: RecurrentQ, *, greedy: bool) -> tuple[Any, Play]:
        epsilon = 0.0 if greedy else self.epsilon

        def play(memory: Any, obs: Any, start: jax.Array, key: jax.Array) -> tuple[Any, Any]:
            noise = epsilon_greedy_noise(env.action_space, key, start.shape, epsilon)
            action, _, memory = self.act(net, obs, forget(memory, start), noise)
            return memory, action

        return initial_memory(net, env.num_envs), play


def _add_time_axis(memory: Any) -> Any:
    return jax.tree.map(lambda x: x[None], memory)
