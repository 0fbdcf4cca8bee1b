"""Advantage actor-critic (Mnih et al. 2016, in its synchronous form).

One gradient step per short piece of experience, on returns that the critic completes where the piece is cut off.
"""

from dataclasses import dataclass

import jax

from weft.algos.policy_gradient import PolicyGradient
from weft.nets.actor_critic import Net
from weft.ops.memory import see, unroll
from weft.ops.returns import lambda_returns
from weft.ops.rollout import Transition


@dataclass(frozen=True, kw_only=True)
class A2C(PolicyGradient):
    """Advantage actor-critic: one gradient step per short rollout."""

    horizon: int = 32
    lr: float = 2e-3
    normalise_advantage: bool = False
    lam: float = 1.0
    """Weight of longer returns: 1 takes as many rewards as there are, 0 one."""

    def targets(self, net: Net, trajectory: Transition) -> tuple[jax.Array, jax.Array]:
        _, memory = unroll(net, trajectory.obs, trajectory.past)
        _, seen = see(net, memory, trajectory.final_obs)
        target = lambda_returns(
            trajectory.reward,
            terminated=trajectory.terminated,
            truncated=trajectory.truncated,
            valid=trajectory.valid,
            v_t=net.value(seen),
            gamma=self.gamma,
            lam=self.lam,
        )
        return target, trajectory.valid
