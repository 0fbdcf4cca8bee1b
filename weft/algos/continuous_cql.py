"""Conservative Q-learning (CQL) for continuous actions: Kumar et al. 2020, "Conservative Q-Learning for
Offline Reinforcement Learning".

CQL(H) on soft actor-critic, from a dataset. The critics' loss also lowers log int exp Q(s, a) da - Q(s, a_data), so
that actions outside of the dataset are not overestimated. The integral is estimated from uniformly random actions
and from actions of the policy in the current and the next state.
"""

from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax

from weft.algos.off_policy import OffPolicy
from weft.datasets.batches import DatasetSource
from weft.envs.timestep import Env
from weft.errors import WeftError
from weft.fragments import fragment
from weft.metrics import Mean
from weft.nets.continuous import ActorCriticNets, Critic, Ensemble, SquashedActor
from weft.ops.actor_critic import CriticLoss, critic_loss, lowest_q, sac_policy_loss, temperature_loss
from weft.ops.conservative import sampled_conservative_loss
from weft.ops.losses import average, means
from weft.ops.n_step import at_step, first_step, n_step
from weft.ops.rollout import Transition
from weft.ops.updates import LearnerState, Loss, actor_critic_adam


@dataclass(frozen=True, kw_only=True)
class ContinuousCQL(OffPolicy):
    """Conservative Q-learning from a dataset, for continuous actions."""

    dataset: str = ""  # a folder of recorded steps, or minari:ID
    replay: Literal["device", "host"] = "device"  # where the steps are stored: the device is faster, the host larger
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
    target_entropy: float = -1.0  # per coordinate of an action, for bounds of -1 and 1
    alpha: float = 5.0  # the weight of the conservative loss
    action_samples: int = 10  # sampled actions of each of three kinds

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.temperature <= 0:
            raise WeftError(
                f"temperature={self.temperature} must be above 0: for a small entropy bonus, give a small one"
            )

    @property
    def source(self) -> DatasetSource:
        return DatasetSource(path=self.dataset, on=self.replay, rows=self.num_envs)

    def build(self, env: Env, key: jax.Array) -> ActorCriticNets:
        """pi, Q_1, Q_2 and log alpha."""
        key_actor, key_critics = jax.random.split(key)
        layers: dict[str, Any] = {"hidden": self.hidden, "activation": self.activation, "torso": self.torso}
        spaces = env.observation_space, env.action_space
        critics = Ensemble(lambda key: Critic(*spaces, key=key, **layers), self.critics, key=key_critics)
        actor = SquashedActor(*spaces, key=key_actor, **layers)
        return ActorCriticNets(actor, critics, jnp.log(jnp.float32(self.temperature)))

    @fragment
    def act(self, net: ActorCriticNets, obs: Any, memory: Any, noise: Any) -> tuple[Any, Any, Any]:
        return net.actor(obs).sample(noise), (), memory

    def loss(
        self, net: ActorCriticNets, learner: LearnerState, items: Transition, weight: jax.Array, key: jax.Array
    ) -> Loss:
        """SAC's losses and the conservative loss; each has gradients for its own parameters only."""
        key, key_samples = jax.random.split(key)
        key_target, key_policy = jax.random.split(key)
        obs, valid = first_step((items.obs, items.valid))
        critic = self.critic_loss(net, learner.net, learner.target, items, key_target)
        q, entropy = self.soft_q(net, learner.net.critics, obs, key_policy)
        policy_loss = sac_policy_loss(q, entropy, learner.net.log_temperature)  # SAC, equation 7
        metrics = {"loss": critic.loss, "value": critic.q, "policy_loss": policy_loss, "entropy": entropy}
        metrics["temperature"] = jnp.broadcast_to(jnp.exp(learner.net.log_temperature), policy_loss.shape)
        if self.learn_temperature:  # SAC, equation 18
            policy_loss += temperature_loss(net.log_temperature, entropy, self.entropy_target(net))
        conservative = Mean.of(self.conservative_loss(net, learner.net, items, key_samples), valid)
        total = average(Mean.of(weight * critic.loss + policy_loss, valid)) + self.alpha * average(conservative)
        return total, (critic.error, means(metrics, valid) | {"conservative_loss": conservative})

    def critic_loss(
        self, net: ActorCriticNets, fixed: ActorCriticNets, target: ActorCriticNets, items: Transition, key: jax.Array
    ) -> CriticLoss:
        """The Bellman residual with y = r + gamma E[min_i Q'_i(s', a')]; `fixed` is `net` without gradients."""
        obs, action = first_step((items.obs, items.action))
        n_steps = n_step(items.reward, **items.ends, gamma=self.gamma)
        # No entropy bonus in the target: the data may have little entropy; the temperature then rises without bound,
        # and the Q-values fall without bound.
        q_t, _ = self.soft_q(fixed, target.critics, at_step(items.final_obs, n_steps.last), key)
        return critic_loss(net.critics(obs, action)[..., 0], n_steps.bootstrap(q_t))

    def conservative_loss(
        self, net: ActorCriticNets, fixed: ActorCriticNets, items: Transition, key: jax.Array
    ) -> jax.Array:
        """The sum over the critics of log int exp Q(s, a) da - Q(s, a_data) (equation 4), [B]."""
        obs, data_action = first_step((items.obs, items.action))
        action, log_density = self.sample_actions(fixed, items, key)
        q = jax.vmap(lambda action: net.critics(obs, action)[..., 0])(action)
        q_data = net.critics(obs, data_action)[..., 0]
        return jnp.sum(sampled_conservative_loss(q, log_density[:, None], q_data), axis=0)

    def sample_actions(self, net: ActorCriticNets, items: Transition, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Sampled actions, [3 action_samples, B, ...], and their log densities, [3 action_samples, B] (appendix F)."""
        key_uniform, key_policy, key_next_policy = jax.random.split(key, 3)
        policy, next_policy = (net.actor(first_step(obs)) for obs in (items.obs, items.final_obs))
        bounds, shape = net.actor.bounds, (self.action_samples, *policy.mean.shape)
        uniform = bounds.from_unit(jax.random.uniform(key_uniform, shape, minval=-1.0))
        samples = (
            (uniform, jnp.full(shape[:2], -bounds.log_volume)),
            policy.sample_and_log_prob(jax.random.normal(key_policy, shape)),
            next_policy.sample_and_log_prob(jax.random.normal(key_next_policy, shape)),
        )
        return jax.tree.map(lambda *parts: jnp.concatenate(parts), *samples)

    def soft_q(self, net: ActorCriticNets, critics: Ensemble, obs: Any, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """For one action of the policy of `net`: the minimum over the critics, and -log pi, [B] each."""
        policy = net.actor(obs)
        action, log_prob = policy.sample_and_log_prob(jax.random.normal(key, policy.mean.shape))
        q = critics(obs, action)
        return lowest_q(q, q[..., 0])[..., 0], -log_prob

    def entropy_target(self, net: ActorCriticNets) -> float:
        """The target entropy of the whole action: wider bounds have a higher entropy for the same shape."""
        half_range = net.actor.bounds.half_range
        return float(self.target_entropy * half_range.size + np.sum(np.log(half_range)))

    def make_optimiser(self) -> optax.GradientTransformation:
        return actor_critic_adam(
            lr=self.lr, actor_lr=self.actor_lr, max_grad_norm=self.max_grad_norm, policy_delay=self.policy_delay
        )
