"""Soft actor-critic for choices (Christodoulou 2019): SAC whose means over the policy are exact sums.

Critics give the worth of every choice at once, so nothing is drawn to learn.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from weft.algos.sac import SAC
from weft.envs.timestep import Env
from weft.nets.continuous import ActorCriticNets
from weft.nets.policy import Policy
from weft.nets.q import QNet
from weft.ops.q_learning import chosen


@dataclass(frozen=True, kw_only=True)
class DiscreteSAC(SAC):
    """Soft actor-critic from replay, for discrete actions."""

    target_entropy: float = 0.5
    """The entropy to aim for, as a share of the highest that there is."""

    def build(self, env: Env, key: jax.Array) -> ActorCriticNets:
        return self.tempered(self.controller(env, key, Policy, QNet))

    def worth(self, net: ActorCriticNets, obs: Any, action: jax.Array) -> jax.Array:
        out = net.critics(obs)
        return chosen(out, jnp.broadcast_to(action, out.shape[:-2]))

    def prospects(
        self, net: ActorCriticNets, judge: ActorCriticNets, obs: Any, key: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        del key
        policy = net.actor(obs)
        worth = self.mean(self.least(judge.critics(obs)))
        return jnp.sum(jax.nn.softmax(policy.logits) * worth, axis=-1), policy.entropy()

    def entropy_aim(self, net: ActorCriticNets) -> float:
        return self.target_entropy * float(np.log(net.actor.head.counts[0]))
