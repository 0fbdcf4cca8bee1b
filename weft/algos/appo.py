"""Asynchronous PPO: PPO's clipped steps towards V-trace's targets.

PPO takes the policy that acted for the one that it starts learning from. Where that has moved on, advantages and value
targets are V-trace's instead; the clipped ratio is of the new policy to the one that acted, as it is in PPO, and is all
the weight that a step gets.
"""

from dataclasses import dataclass

import jax

from weft.algos.impala import correct
from weft.algos.ppo import PPO
from weft.nets.actor_critic import Net
from weft.ops.rollout import Transition


@dataclass(frozen=True, kw_only=True)
class APPO(PPO):
    """PPO that corrects for experience of an older policy, by V-trace."""

    rho_bar: float = 1.0
    """Limit of the weight of a step's error: the higher, the nearer the values are to the learning policy's own."""
    c_bar: float = 1.0
    """Limit of the weight with which later errors reach back: lower varies less and learns slower."""

    def estimate(self, net: Net, trajectory: Transition) -> tuple[jax.Array, jax.Array, jax.Array]:
        clips = {"rho_bar": self.rho_bar, "c_bar": self.c_bar}
        v_tm1, found = correct(net, trajectory, gamma=self.gamma, lam=self.lam, **clips)
        return v_tm1, found.q - v_tm1, found.target
