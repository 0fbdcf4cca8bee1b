"""Advantage actor-critic (Mnih et al. 2016, in its synchronous form).

One gradient step per short piece of experience, on returns that the critic completes where the piece is cut off.
"""

from dataclasses import dataclass

from weft.algos.on_policy import values
from weft.algos.policy_gradient import PolicyGradient, Targets
from weft.nets.actor_critic import Net
from weft.ops.returns import lambda_returns
from weft.ops.rollout import Transition


@dataclass(frozen=True, kw_only=True)
class A2C(PolicyGradient):
    """Advantage actor-critic: one gradient step per short rollout."""

    lam: float = 1.0
    """Weight of longer returns: 1 takes as many rewards as there are, 0 one."""

    def targets(self, net: Net, trajectory: Transition) -> Targets:
        _, v_tm1, v_t = values(net, trajectory)
        returns = lambda_returns(
            trajectory.reward,
            terminated=trajectory.terminated,
            truncated=trajectory.truncated,
            valid=trajectory.valid,
            v_t=v_t,
            gamma=self.gamma,
            lam=self.lam,
        )
        return Targets(returns, returns - v_tm1, trajectory.valid)
