"""Soft actor-critic (Haarnoja et al. 2018b): a policy that is paid for what it earns and for staying undecided.

How much the second counts, the temperature, is learned: it rises while the policy is more decided than it should be,
and falls while it is less.
"""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from weft.algos.actor_critics import ActorCritics
from weft.algos.off_policy import OffPolicy
from weft.envs.timestep import Env
from weft.errors import WeftError
from weft.fragments import fragment
from weft.nets.continuous import ActorCriticNets, Critic, SquashedActor


@dataclass(frozen=True, kw_only=True)
class SoftActorCritics(ActorCritics):
    """Settings, and what policy and temperature lose; abstract."""

    critics: int = 2
    temperature: float = 1.0
    """What entropy is worth in units of reward, at first."""
    learn_temperature: bool = True
    """Whether that is changed so that the policy's entropy comes to `target_entropy`."""
    target_entropy: float = -1.0
    """The entropy to aim for, of every coordinate of an action whose bounds are -1 and 1."""

    def __post_init__(self) -> None:
        if self.temperature <= 0:
            raise WeftError(
                f"temperature={self.temperature} must be above 0: give a small one to pay little for entropy"
            )

    def build(self, env: Env, key: jax.Array) -> ActorCriticNets:
        return self.tempered(self.controller(env, key, SquashedActor, Critic))

    def tempered(self, net: ActorCriticNets) -> ActorCriticNets:
        """The same with the temperature that it begins with."""
        return replace(net, log_temperature=jnp.log(jnp.float32(self.temperature)))

    @fragment
    def act(self, net: ActorCriticNets, obs: Any, memory: Any, noise: Any) -> tuple[Any, Any, Any]:
        return net.actor(obs).sample(noise), (), memory

    def after(self, net: ActorCriticNets, target: ActorCriticNets, obs: Any, key: jax.Array) -> jax.Array:
        earned, entropy = self.prospects(net, target, obs, key)
        return (earned + jnp.exp(net.log_temperature) * entropy)[..., None]

    def policy_loss(
        self, net: ActorCriticNets, fixed: ActorCriticNets, obs: Any, key: jax.Array
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        earned, entropy = self.prospects(net, fixed, obs, key)
        temperature = jnp.exp(fixed.log_temperature)
        loss = -earned - temperature * entropy
        seen = {"policy_loss": loss, "entropy": entropy, "temperature": jnp.broadcast_to(temperature, loss.shape)}
        if not self.learn_temperature:
            return loss, seen
        missing = self.entropy_aim(net) - jax.lax.stop_gradient(entropy)
        return loss - net.log_temperature * missing, seen

    def prospects(
        self, net: ActorCriticNets, judge: ActorCriticNets, obs: Any, key: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """What the policy of `net` earns as the critics of `judge` have it, and its entropy, [B] each: by one draw."""
        policy = net.actor(obs)
        action, log_prob = policy.sample_and_log_prob(jax.random.normal(key, policy.mean.shape))
        return self.mean(self.least(judge.critics(obs, action))), -log_prob

    def entropy_aim(self, net: ActorCriticNets) -> float:
        """What the temperature aims for: the wider the bounds, the more entropy stands for the same indecision."""
        reach = net.actor.bounds.half_range
        return float(self.target_entropy * reach.size + np.sum(np.log(reach)))


@dataclass(frozen=True, kw_only=True)
class SAC(SoftActorCritics, OffPolicy):
    """Soft actor-critic from replay, for actions that are numbers."""
