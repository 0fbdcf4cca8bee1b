"""REINFORCE (Williams 1992) with a learned baseline (Sutton and Barto 2018, section 13.4).

Returns are the rewards that were seen to the end of the episode, and nothing else: steps of an episode that has not
ended when the rollout does are left out, so `horizon` should be longer than most episodes.
"""

from dataclasses import dataclass
from typing import Literal

import jax.numpy as jnp

from weft.algos.policy_gradient import PolicyGradient, Targets
from weft.nets.actor_critic import Net
from weft.ops.memory import unroll
from weft.ops.returns import discounted_returns, ends_within
from weft.ops.rollout import Transition


@dataclass(frozen=True, kw_only=True)
class Reinforce(PolicyGradient):
    """REINFORCE with a learned baseline: returns of whole episodes, no bootstrapping."""

    num_envs: int = 8
    horizon: int = 512
    lr: float = 5e-3
    # Whole returns make the value's first gradients huge; clipped with them the policy's would vanish, and then leap.
    max_grad_norm: float = 1e3
    normalise_advantage: bool = True
    optimiser: Literal["adam", "rmsprop"] = "adam"
    epsilon: float = 1e-5

    def targets(self, net: Net, trajectory: Transition) -> Targets:
        returns = discounted_returns(
            trajectory.reward,
            terminated=trajectory.terminated,
            truncated=trajectory.truncated,
            valid=trajectory.valid,
            v_t=jnp.zeros_like(trajectory.reward),
            gamma=self.gamma,
        )
        seen, _ = unroll(net, trajectory.obs, trajectory.past)
        known = ends_within(trajectory.terminated | trajectory.truncated)
        return Targets(returns, returns - net.value(seen), trajectory.valid & known)
