"""Deep deterministic policy gradient (DDPG): Lillicrap et al. 2016, "Continuous control with deep reinforcement
learning".

A critic Q(s, a) learns from replayed transitions with target networks; a deterministic actor mu(s) ascends the critic.
The behaviour policy adds Gaussian noise to the actor's actions (the paper: an Ornstein-Uhlenbeck process).
"""

from dataclasses import dataclass
from typing import Any

import jax
import optax

from weft.algos.off_policy import OffPolicy
from weft.envs.timestep import Env
from weft.fragments import fragment
from weft.metrics import Mean
from weft.nets.continuous import Actor, ActorCriticNets, Critic, Ensemble
from weft.ops.actor_critic import CriticLoss, critic_loss, lowest_q
from weft.ops.losses import average, means
from weft.ops.n_step import at_step, first_step, n_step, single_steps
from weft.ops.rollout import Transition
from weft.ops.updates import LearnerState, Loss, actor_critic_adam


@dataclass(frozen=True, kw_only=True)
class DDPG(OffPolicy):
    """Deterministic policy gradients from replay, for continuous actions."""

    batch_size: int = 256
    hidden: tuple[int, ...] = (256, 256)
    lr: float = 3e-4  # step size of the critics
    actor_lr: float = 3e-4  # step size of the actor
    max_grad_norm: float = 1e9
    tau: float = 0.005
    critics: int = 1  # the target is the minimum over the critics
    policy_delay: int = 1  # critic updates per actor update
    exploration_noise: float = 0.1  # standard deviation of the behaviour policy's noise, relative to half the range

    def build(self, env: Env, key: jax.Array) -> ActorCriticNets:
        """mu and Q."""
        key_actor, key_critics = jax.random.split(key)
        layers: dict[str, Any] = {"hidden": self.hidden, "activation": self.activation, "torso": self.torso}
        spaces = env.observation_space, env.action_space
        critics = Ensemble(lambda key: Critic(*spaces, key=key, **layers), self.critics, key=key_critics)
        return ActorCriticNets(Actor(*spaces, key=key_actor, **layers), critics)

    @fragment
    def act(self, net: ActorCriticNets, obs: Any, memory: Any, noise: jax.Array) -> tuple[Any, Any, Any]:
        """a = mu(s) + noise (equation 7)."""
        return net.actor.bounds.perturb(net.actor(obs), self.exploration_noise * noise), (), memory

    def loss(
        self, net: ActorCriticNets, learner: LearnerState, items: Transition, weight: jax.Array, key: jax.Array
    ) -> Loss:
        """The losses of critics and actor; each has gradients for its own network only."""
        obs, valid = first_step((items.obs, items.valid))
        critic = self.critic_loss(net, learner.target, items)
        # Equation 6: the actor ascends Q(s, mu(s)), with the critic fixed.
        policy_loss = -learner.net.critics.first(obs, net.actor(obs))[..., 0]
        metrics = {"loss": critic.loss, "value": critic.q, "policy_loss": policy_loss}
        return average(Mean.of(weight * critic.loss + policy_loss, valid)), (critic.error, means(metrics, valid))

    def critic_loss(self, net: ActorCriticNets, target: ActorCriticNets, items: Transition) -> CriticLoss:
        """The mean squared error of equation 4, with n-step targets."""
        obs, action = first_step((items.obs, items.action))
        n_steps = n_step(items.reward, **items.ends, gamma=self.gamma)
        next_obs = at_step(items.final_obs, n_steps.last)
        # Equation 5: y = r + gamma Q'(s', mu'(s')).
        q_t = target.critics(next_obs, target.actor(next_obs))
        y = n_steps.bootstrap(lowest_q(q_t, q_t[..., 0])[..., 0])
        return critic_loss(net.critics(obs, action)[..., 0], y)

    @fragment(name="act.priorities")
    def initial_priorities(self, net: ActorCriticNets, target: ActorCriticNets, trajectory: Transition) -> jax.Array:
        return self.critic_loss(net, target, single_steps(trajectory)).error.reshape(trajectory.reward.shape)

    def make_optimiser(self) -> optax.GradientTransformation:
        return actor_critic_adam(
            lr=self.lr, actor_lr=self.actor_lr, max_grad_norm=self.max_grad_norm, policy_delay=self.policy_delay
        )
