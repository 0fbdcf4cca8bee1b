"""Deep deterministic policy gradients (Lillicrap et al. 2016): a policy that climbs what its critic thinks of it.

The policy gives actions, not a distribution over them, so noise is added to explore.
"""

from dataclasses import dataclass
from typing import Any

import jax

from weft.algos.actor_critics import ActorCritics
from weft.algos.off_policy import OffPolicy
from weft.envs.timestep import Env
from weft.fragments import fragment
from weft.nets.continuous import Actor, ActorCriticNets, Critic


@dataclass(frozen=True, kw_only=True)
class DDPG(ActorCritics, OffPolicy):
    """Deterministic policy gradients from replay, for actions that are numbers."""

    exploration: float = 0.1
    """The spread of the noise on actions, as a share of half their range."""

    def build(self, env: Env, key: jax.Array) -> ActorCriticNets:
        return self.controller(env, key, Actor, Critic)

    @fragment
    def act(self, net: ActorCriticNets, obs: Any, memory: Any, noise: jax.Array) -> tuple[Any, Any, Any]:
        return net.actor.bounds.perturb(net.actor(obs), self.exploration * noise), (), memory

    def after(self, net: ActorCriticNets, target: ActorCriticNets, obs: Any, key: jax.Array) -> jax.Array:
        return self.least(target.critics(obs, self.target_action(target, obs, key)))

    def target_action(self, target: ActorCriticNets, obs: Any, key: jax.Array) -> jax.Array:
        """What the target policy does."""
        del key
        return target.actor(obs)

    def policy_loss(
        self, net: ActorCriticNets, fixed: ActorCriticNets, obs: Any, key: jax.Array
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """What the first critic thinks of the policy's own actions, but less is better."""
        del key
        loss = -self.mean(fixed.critics.first(obs, net.actor(obs)))
        return loss, {"policy_loss": loss}
