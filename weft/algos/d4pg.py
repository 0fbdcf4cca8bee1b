"""Distributed distributional DDPG (D4PG): Barth-Maron et al. 2018, "Distributed Distributional Deterministic Policy
Gradients".

DDPG with a critic that learns the distribution of n-step returns on fixed atoms. With `prioritised`, items are sampled
by the cross-entropy of the critic. The layout `apex` distributes it, as the paper does.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import optax

from weft.algos.off_policy import OffPolicy
from weft.envs.timestep import Env
from weft.fragments import fragment
from weft.metrics import Mean
from weft.nets.continuous import Actor, ActorCriticNets, Critic, Ensemble
from weft.ops.actor_critic import CriticLoss, distributional_critic_loss, lowest_q
from weft.ops.losses import average, means
from weft.ops.n_step import at_step, first_step, n_step, single_steps
from weft.ops.q_learning import atoms, expected_return
from weft.ops.rollout import Transition
from weft.ops.updates import LearnerState, Loss, actor_critic_adam


@dataclass(frozen=True, kw_only=True)
class D4PG(OffPolicy):
    """Distributional deterministic policy gradients from replay, for continuous actions."""

    batch_size: int = 256
    hidden: tuple[int, ...] = (256, 256)
    lr: float = 3e-4  # step size of the critics
    actor_lr: float = 3e-4  # step size of the actor
    max_grad_norm: float = 1e9
    tau: float = 0.005
    critics: int = 1  # the target is of the critic with the lowest mean
    policy_delay: int = 1  # critic updates per actor update
    exploration_noise: float = 0.1  # standard deviation of the behaviour policy's noise, relative to half the range
    n_step: int = 5
    num_atoms: int = 51  # atoms of the return distribution
    v_min: float = -150.0  # the lowest atom
    v_max: float = 150.0  # the highest atom

    def build(self, env: Env, key: jax.Array) -> ActorCriticNets:
        """pi and the return distribution Z."""
        key_actor, key_critics = jax.random.split(key)
        layers: dict[str, Any] = {"hidden": self.hidden, "activation": self.activation, "torso": self.torso}
        spaces, critic = (env.observation_space, env.action_space), partial(Critic, atoms=self.num_atoms)
        critics = Ensemble(lambda key: critic(*spaces, key=key, **layers), self.critics, key=key_critics)
        return ActorCriticNets(Actor(*spaces, key=key_actor, **layers), critics)

    @fragment
    def act(self, net: ActorCriticNets, obs: Any, memory: Any, noise: jax.Array) -> tuple[Any, Any, Any]:
        """a = pi(s) + noise."""
        return net.actor.bounds.perturb(net.actor(obs), self.exploration_noise * noise), (), memory

    def loss(
        self, net: ActorCriticNets, learner: LearnerState, items: Transition, weight: jax.Array, key: jax.Array
    ) -> Loss:
        """The losses of critics and actor (algorithm 1); each has gradients for its own network only."""
        obs, valid = first_step((items.obs, items.valid))
        critic = self.critic_loss(net, learner.target, items)
        # The actor ascends E[Z(s, pi(s))], with the critic fixed.
        policy_loss = -expected_return(learner.net.critics.first(obs, net.actor(obs)), self.support)
        metrics = {"loss": critic.loss, "value": critic.q, "policy_loss": policy_loss}
        return average(Mean.of(weight * critic.loss + policy_loss, valid)), (critic.error, means(metrics, valid))

    def critic_loss(self, net: ActorCriticNets, target: ActorCriticNets, items: Transition) -> CriticLoss:
        """The cross-entropy to the projected target distribution Y = r + ... + gamma^n Z'(s', pi'(s'))."""
        obs, action = first_step((items.obs, items.action))
        n_steps = n_step(items.reward, **items.ends, gamma=self.gamma)
        next_obs = at_step(items.final_obs, n_steps.last)
        z_t = target.critics(next_obs, target.actor(next_obs))
        z_t = lowest_q(z_t, expected_return(z_t, self.support))
        return distributional_critic_loss(net.critics(obs, action), z_t, support=self.support, n_steps=n_steps)

    @property
    def support(self) -> jax.Array:
        """The atoms of the return distribution."""
        return atoms(self.v_min, self.v_max, self.num_atoms)

    @fragment(name="act.priorities")
    def initial_priorities(self, net: ActorCriticNets, target: ActorCriticNets, trajectory: Transition) -> jax.Array:
        return self.critic_loss(net, target, single_steps(trajectory)).error.reshape(trajectory.reward.shape)

    def make_optimiser(self) -> optax.GradientTransformation:
        return actor_critic_adam(
            lr=self.lr, actor_lr=self.actor_lr, max_grad_norm=self.max_grad_norm, policy_delay=self.policy_delay
        )
