"""Twin delayed deterministic policy gradients (Fujimoto et al. 2018): DDPG that does not believe its critic too easily.

- Of two critics the one that expects less gives the targets.
- The target policy's actions are blurred by noise, so that a critic is no better than around where it is best.
- The policy and all targets move less often than the critics.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from weft.algos.ddpg import DDPG
from weft.nets.continuous import ActorCriticNets


@dataclass(frozen=True, kw_only=True)
class TD3(DDPG):
    """DDPG with twin critics, blurred targets and a policy that is slower than they are."""

    critics: int = 2
    policy_period: int = 2
    target_period: int = 2
    blur: float = 0.2
    """The spread of the noise on the target policy's actions, as a share of half their range."""
    blur_limit: float = 0.5
    """The most of such noise."""

    def target_action(self, target: ActorCriticNets, obs: Any, key: jax.Array) -> jax.Array:
        action = super().target_action(target, obs, key)
        noise = self.blur * jax.random.normal(key, action.shape)
        return target.actor.bounds.perturb(action, jnp.clip(noise, -self.blur_limit, self.blur_limit))
