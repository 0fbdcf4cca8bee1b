"""IMPALA's actor-critic (Espeholt et al. 2018): one gradient step per short piece of experience, with V-trace.

The policy that acted may be some updates older than the one that learns. It is stored with its actions, so every step
can be weighted by how likely the learning policy would have made it; where the two are one this is advantage
actor-critic.
"""

from dataclasses import dataclass

import jax

from weft.algos.on_policy import values
from weft.algos.policy_gradient import PolicyGradient, Targets
from weft.nets.actor_critic import Net
from weft.ops.rollout import Transition
from weft.ops.vtrace import VTrace, vtrace


@dataclass(frozen=True, kw_only=True)
class IMPALA(PolicyGradient):
    """Importance-weighted actor-critic: A2C that corrects for experience of an older policy, by V-trace."""

    lam: float = 1.0
    """Weight of longer returns: 1 takes as many rewards as there are, 0 one."""
    rho_bar: float = 1.0
    """Limit of the weight of a step's error: the higher, the nearer the values are to the learning policy's own."""
    c_bar: float = 1.0
    """Limit of the weight with which later errors reach back: lower varies less and learns slower."""
    rho_bar_policy: float = 1.0
    """Limit of the weight of a step in the policy's gradient."""

    def targets(self, net: Net, trajectory: Transition) -> Targets:
        clips = {"rho_bar": self.rho_bar, "c_bar": self.c_bar, "rho_bar_policy": self.rho_bar_policy}
        _, found = correct(net, trajectory, gamma=self.gamma, lam=self.lam, **clips)
        return Targets(found.target, found.advantage, trajectory.valid)


def correct(net: Net, trajectory: Transition, *, gamma: float, lam: float, **clips: float) -> tuple[jax.Array, VTrace]:
    """The values of a trajectory by `net`, and V-trace from the policy that acted to that of `net`."""
    seen, v_tm1, v_t = values(net, trajectory)
    log_prob = net.policy(seen).log_prob(trajectory.action)
    found = vtrace(
        log_prob - trajectory.extra.log_prob(trajectory.action),
        trajectory.reward,
        terminated=trajectory.terminated,
        truncated=trajectory.truncated,
        valid=trajectory.valid,
        v_tm1=v_tm1,
        v_t=v_t,
        gamma=gamma,
        lam=lam,
        **clips,
    )
    return v_tm1, found
