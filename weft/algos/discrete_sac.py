"""Discrete soft actor-critic: Christodoulou 2019, "Soft Actor-Critic for Discrete Action Settings".

SAC with a categorical policy. Critics return the Q-values of all actions, so expectations over the policy are exact
sums instead of samples.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from weft.algos.off_policy import OffPolicy
from weft.envs.timestep import Env
from weft.errors import WeftError
from weft.fragments import fragment
from weft.metrics import Mean
from weft.nets.continuous import ActorCriticNets, Ensemble
from weft.nets.policy import Policy
from weft.nets.q import QNet
from weft.ops.actor_critic import CriticLoss, critic_loss, lowest_q, sac_policy_loss, temperature_loss
from weft.ops.losses import average, means
from weft.ops.n_step import at_step, first_step, n_step, single_steps
from weft.ops.q_learning import chosen
from weft.ops.rollout import Transition
from weft.ops.updates import LearnerState, Loss, actor_critic_adam


@dataclass(frozen=True, kw_only=True)
class DiscreteSAC(OffPolicy):
    """Soft actor-critic from replay, for discrete actions."""

    batch_size: int = 256
    hidden: tuple[int, ...] = (256, 256)
    lr: float = 3e-4  # step size of the critics
    actor_lr: float = 3e-4  # step size of the actor
    max_grad_norm: float = 1e9
    tau: float = 0.005
    critics: int = 2
    policy_delay: int = 1  # critic updates per actor update
    temperature: float = 1.0  # alpha at the start: the weight of the entropy, in units of reward
    learn_temperature: bool = True  # whether alpha is adjusted so that the entropy reaches target_entropy
    target_entropy: float = 0.5  # as a share of the highest possible entropy

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.temperature <= 0:
            raise WeftError(
                f"temperature={self.temperature} must be above 0: for a small entropy bonus, give a small one"
            )

    def build(self, env: Env, key: jax.Array) -> ActorCriticNets:
        """pi, Q_1, Q_2 and log alpha."""
        key_actor, key_critics = jax.random.split(key)
        layers: dict[str, Any] = {"hidden": self.hidden, "activation": self.activation, "torso": self.torso}
        spaces = env.observation_space, env.action_space
        critics = Ensemble(lambda key: QNet(*spaces, key=key, **layers), self.critics, key=key_critics)
        actor = Policy(*spaces, key=key_actor, **layers)
        return ActorCriticNets(actor, critics, jnp.log(jnp.float32(self.temperature)))

    @fragment
    def act(self, net: ActorCriticNets, obs: Any, memory: Any, noise: Any) -> tuple[Any, Any, Any]:
        return net.actor(obs).sample(noise), (), memory

    def loss(
        self, net: ActorCriticNets, learner: LearnerState, items: Transition, weight: jax.Array, key: jax.Array
    ) -> Loss:
        """The losses of critics, actor and temperature; each has gradients for its own parameters only."""
        del key
        obs, valid = first_step((items.obs, items.valid))
        critic = self.critic_loss(net, learner.net, learner.target, items)
        q, entropy = self.soft_q(net, learner.net.critics, obs)
        policy_loss = sac_policy_loss(q, entropy, learner.net.log_temperature)  # equation 12
        metrics = {"loss": critic.loss, "value": critic.q, "policy_loss": policy_loss, "entropy": entropy}
        metrics["temperature"] = jnp.broadcast_to(jnp.exp(learner.net.log_temperature), policy_loss.shape)
        if self.learn_temperature:  # equation 11
            policy_loss += temperature_loss(net.log_temperature, entropy, self.entropy_target(net))
        return average(Mean.of(weight * critic.loss + policy_loss, valid)), (critic.error, means(metrics, valid))

    def critic_loss(
        self, net: ActorCriticNets, fixed: ActorCriticNets, target: ActorCriticNets, items: Transition
    ) -> CriticLoss:
        """The soft Bellman residual (equation 3), with n-step targets; `fixed` is `net` without gradients."""
        obs, action = first_step((items.obs, items.action))
        n_steps = n_step(items.reward, **items.ends, gamma=self.gamma)
        # Equation 10: V(s') = sum_a pi(a | s') (min_i Q'_i(s', a) - alpha log pi(a | s')), y = r + gamma V(s').
        q_t, entropy = self.soft_q(fixed, target.critics, at_step(items.final_obs, n_steps.last))
        y = n_steps.bootstrap(q_t + jnp.exp(fixed.log_temperature) * entropy)
        q = net.critics(obs)
        q = chosen(q, jnp.broadcast_to(action, q.shape[:-2]))[..., 0]
        return critic_loss(q, y)

    def soft_q(self, net: ActorCriticNets, critics: Ensemble, obs: Any) -> tuple[jax.Array, jax.Array]:
        """For the policy of `net`: its expectation of the minimum over the critics, and its entropy, [B] each."""
        policy, q = net.actor(obs), critics(obs)
        q = lowest_q(q, q[..., 0])[..., 0]
        return jnp.sum(jax.nn.softmax(policy.logits) * q, axis=-1), policy.entropy()

    def entropy_target(self, net: ActorCriticNets) -> float:
        """The target entropy: a share of the uniform distribution's."""
        return self.target_entropy * float(np.log(net.actor.head.counts[0]))

    @fragment(name="act.priorities")
    def initial_priorities(self, net: ActorCriticNets, target: ActorCriticNets, trajectory: Transition) -> jax.Array:
        critic = self.critic_loss(net, net, target, single_steps(trajectory))
        return critic.error.reshape(trajectory.reward.shape)

    def make_optimiser(self) -> optax.GradientTransformation:
        return actor_critic_adam(
            lr=self.lr, actor_lr=self.actor_lr, max_grad_norm=self.max_grad_norm, policy_delay=self.policy_delay
        )
