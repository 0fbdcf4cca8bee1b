"""Deep Q-networks (DQN): Mnih et al. 2015, "Human-level control through deep reinforcement learning".

Its extensions are settings; together they are Rainbow (Hessel et al. 2018) without noisy networks:

- `double`: double Q-learning (van Hasselt et al. 2016, equation 4);
- `dueling`: a state value plus advantages (Wang et al. 2016, equation 9);
- `prioritised` and `n_step`, which all off-policy algorithms have (Schaul et al. 2016);
- `distributional`: categorical distributions over returns, C51 (Bellemare et al. 2017).
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from weft.algorithm import Play
from weft.algos.off_policy import OffPolicy
from weft.envs.timestep import Env
from weft.fragments import fragment
from weft.metrics import Mean
from weft.nets.q import QNet
from weft.ops.actions import EpsilonGreedyNoise, epsilon_greedy, epsilon_greedy_noise, exploration_rate
from weft.ops.losses import average, means
from weft.ops.n_step import at_step, first_step, n_step, single_steps
from weft.ops.q_learning import atoms, chosen, cross_entropy, expected_return, greedy, huber, project
from weft.ops.rollout import Transition
from weft.ops.updates import LearnerState, Loss


@dataclass(frozen=True, kw_only=True)
class DQN(OffPolicy):
    """Q-learning from replay, for discrete actions."""

    n_step: int = 5
    lr: float = 2.5e-4
    batch_size: int = 128
    target_period: int = 500
    double: bool = True  # whether the network selects the action that the target network evaluates
    dueling: bool = False  # whether Q-values are the sum of a state value and advantages
    distributional: bool = False  # whether return distributions are learned in place of Q-values
    num_atoms: int = 51  # atoms of a return distribution
    v_min: float = -10.0  # the lowest atom
    v_max: float = 10.0  # the highest atom
    epsilon: float = 0.05  # final exploration rate
    epsilon_steps: int = 20_000  # environment steps over which the exploration rate decays linearly from 1
    epsilon_spread: float = 0.0  # the last environment's final exploration rate is epsilon to the power 1 + this

    def build(self, env: Env, key: jax.Array) -> QNet:
        """Q, or the return distribution Z."""
        layers: dict[str, Any] = {"hidden": self.hidden, "activation": self.activation, "torso": self.torso}
        count = self.num_atoms if self.distributional else 1
        return QNet(env.observation_space, env.action_space, atoms=count, key=key, dueling=self.dueling, **layers)

    @fragment(name="act.noise")
    def acting_noise(self, env: Env, row: jax.Array, iteration: jax.Array, key: jax.Array) -> EpsilonGreedyNoise:
        schedule = {"decay_steps": self.epsilon_steps, "spread": self.epsilon_spread, "num_envs": self.num_envs}
        epsilon = exploration_rate(iteration * self.horizon * self.num_envs, row, final=self.epsilon, **schedule)
        return epsilon_greedy_noise(env.action_space, key, (self.horizon, env.num_envs), epsilon)

    @fragment
    def act(self, net: QNet, obs: Any, memory: Any, noise: EpsilonGreedyNoise) -> tuple[Any, Any, Any]:
        """The epsilon-greedy behaviour policy."""
        return epsilon_greedy(self.q_values(net, obs), net.allowed(obs), noise), (), memory

    def q_values(self, net: QNet, obs: Any) -> jax.Array:
        """Q(s, a) of every action."""
        out = net(obs)
        return expected_return(out, self.support) if self.distributional else out[..., 0]

    def loss(self, net: QNet, learner: LearnerState, items: Transition, weight: jax.Array, key: jax.Array) -> Loss:
        """The Huber loss of the temporal-difference error, or C51's cross-entropy."""
        del key
        loss, error, q = self.td_loss(net, learner.net, learner.target, items)
        valid = items.valid[0]
        return average(Mean.of(weight * loss, valid)), (error, means({"loss": loss, "value": q}, valid))

    def td_loss(
        self, net: QNet, fixed: QNet, target: QNet, items: Transition
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """The loss, the error and Q(s, a) of every item, [B] each; `fixed` is `net` without gradients."""
        obs, action = first_step((items.obs, items.action))
        n_steps = n_step(items.reward, **items.ends, gamma=self.gamma)
        next_obs = at_step(items.final_obs, n_steps.last)
        # Double Q-learning selects by the network, plain Q-learning by the target network.
        best = greedy(self.q_values(fixed if self.double else target, next_obs), target.allowed(next_obs))
        out_t, out_tm1 = chosen(target(next_obs), best), chosen(net(obs), action)
        if self.distributional:  # Bellemare et al. 2017, algorithm 1
            probabilities = jax.nn.softmax(out_t)
            y = project(self.support, probabilities, reward=n_steps.reward, discount=n_steps.discount)
            loss = cross_entropy(out_tm1, y)
            return loss, loss, expected_return(out_tm1, self.support)
        y, q = n_steps.bootstrap(out_t[..., 0]), out_tm1[..., 0]
        error = jax.lax.stop_gradient(y) - q
        return huber(error), jnp.abs(error) + 1e-6, q

    @property
    def support(self) -> jax.Array:
        """The atoms of a return distribution."""
        return atoms(self.v_min, self.v_max, self.num_atoms)

    @fragment(name="act.priorities")
    def initial_priorities(self, net: QNet, target: QNet, trajectory: Transition) -> jax.Array:
        return self.td_loss(net, net, target, single_steps(trajectory))[1].reshape(trajectory.reward.shape)

    def player(self, env: Env, net: QNet, *, greedy: bool) -> tuple[Any, Play]:
        epsilon = 0.0 if greedy else self.epsilon

        def play(memory: Any, obs: Any, start: jax.Array, key: jax.Array) -> tuple[Any, Any]:
            noise = epsilon_greedy_noise(env.action_space, key, start.shape, epsilon)
            return memory, self.act(net, obs, memory, noise)[0]

        return (), play
