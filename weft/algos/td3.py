"""Twin delayed DDPG (TD3): Fujimoto et al. 2018, "Addressing Function Approximation Error in Actor-Critic Methods".

Three changes to DDPG reduce the overestimation of Q-values: targets take the minimum over two critics, target policy
smoothing adds noise to the target actions, and actor and target networks are updated less often than the critics.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
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
class TD3(OffPolicy):
    """Twin delayed deterministic policy gradients from replay, for continuous actions."""

    batch_size: int = 256
    hidden: tuple[int, ...] = (256, 256)
    lr: float = 3e-4  # step size of the critics
    actor_lr: float = 3e-4  # step size of the actor
    max_grad_norm: float = 1e9
    tau: float = 0.005
    critics: int = 2
    policy_delay: int = 2  # d: critic updates per actor update
    target_period: int = 2
    exploration_noise: float = 0.1  # standard deviation of the behaviour policy's noise, relative to half the range
    target_noise: float = 0.2  # standard deviation of target policy smoothing, relative to half the range
    target_noise_clip: float = 0.5  # c: the noise of target policy smoothing is clipped to this

    def build(self, env: Env, key: jax.Array) -> ActorCriticNets:
        """pi and Q_1, Q_2."""
        key_actor, key_critics = jax.random.split(key)
        layers: dict[str, Any] = {"hidden": self.hidden, "activation": self.activation, "torso": self.torso}
        spaces = env.observation_space, env.action_space
        critics = Ensemble(lambda key: Critic(*spaces, key=key, **layers), self.critics, key=key_critics)
        return ActorCriticNets(Actor(*spaces, key=key_actor, **layers), critics)

    @fragment
    def act(self, net: ActorCriticNets, obs: Any, memory: Any, noise: jax.Array) -> tuple[Any, Any, Any]:
        """a = pi(s) + noise."""
        return net.actor.bounds.perturb(net.actor(obs), self.exploration_noise * noise), (), memory

    def loss(
        self, net: ActorCriticNets, learner: LearnerState, items: Transition, weight: jax.Array, key: jax.Array
    ) -> Loss:
        """The losses of critics and actor (algorithm 1); each has gradients for its own network only."""
        key_target, _ = jax.random.split(key)
        obs, valid = first_step((items.obs, items.valid))
        critic = self.critic_loss(net, learner.target, items, key_target)
        # The deterministic policy gradient: the actor ascends Q_1(s, pi(s)), with the critic fixed.
        policy_loss = -learner.net.critics.first(obs, net.actor(obs))[..., 0]
        metrics = {"loss": critic.loss, "value": critic.q, "policy_loss": policy_loss}
        return average(Mean.of(weight * critic.loss + policy_loss, valid)), (critic.error, means(metrics, valid))

    def critic_loss(
        self, net: ActorCriticNets, target: ActorCriticNets, items: Transition, key: jax.Array
    ) -> CriticLoss:
        """The mean squared error of every critic, with n-step targets."""
        obs, action = first_step((items.obs, items.action))
        n_steps = n_step(items.reward, **items.ends, gamma=self.gamma)
        next_obs = at_step(items.final_obs, n_steps.last)
        # Clipped double Q-learning (equation 10): y = r + gamma min_i Q'_i(s', a').
        q_t = target.critics(next_obs, self.target_action(target, next_obs, key))
        y = n_steps.bootstrap(lowest_q(q_t, q_t[..., 0])[..., 0])
        return critic_loss(net.critics(obs, action)[..., 0], y)

    def target_action(self, target: ActorCriticNets, obs: Any, key: jax.Array) -> jax.Array:
        """Target policy smoothing (section 5.3): a' = pi'(s') + clip(noise, -c, c)."""
        action = target.actor(obs)
        noise = self.target_noise * jax.random.normal(key, action.shape)
        return target.actor.bounds.perturb(action, jnp.clip(noise, -self.target_noise_clip, self.target_noise_clip))

    @fragment(name="act.priorities")
    def initial_priorities(self, net: ActorCriticNets, target: ActorCriticNets, trajectory: Transition) -> jax.Array:
        # A constant key: these errors only rank items until they are first sampled.
        critic = self.critic_loss(net, target, single_steps(trajectory), jax.random.key(0))
        return critic.error.reshape(trajectory.reward.shape)

    def make_optimiser(self) -> optax.GradientTransformation:
        return actor_critic_adam(
            lr=self.lr, actor_lr=self.actor_lr, max_grad_norm=self.max_grad_norm, policy_delay=self.policy_delay
        )
