"""Advantage actor-critic (Mnih et al. 2016, in its synchronous form).

One gradient step per short piece of experience, on returns that the critic completes where the piece is cut off.
"""

from dataclasses import dataclass

import jax
import optax

from weft.algos.on_policy import OnPolicy
from weft.fragment import all_mean, fragment
from weft.metrics import Mean
from weft.nets.actor_critic import ActorCritic
from weft.ops.losses import actor_critic
from weft.ops.returns import lambda_returns
from weft.ops.rollout import Transition


@dataclass(frozen=True, kw_only=True)
class A2C(OnPolicy):
    """Advantage actor-critic: one gradient step per short rollout."""

    horizon: int = 32
    lr: float = 2e-3
    normalise_advantage: bool = False
    lam: float = 1.0
    """Weight of longer returns: 1 takes as many rewards as there are, 0 one."""

    @fragment
    def learn(
        self, net: ActorCritic, opt: optax.OptState, trajectory: Transition, remaining: jax.Array, key: jax.Array
    ) -> tuple[ActorCritic, optax.OptState, dict[str, Mean]]:
        del key
        target = lambda_returns(
            trajectory.reward,
            terminated=trajectory.terminated,
            truncated=trajectory.truncated,
            v_t=net.value(trajectory.final_obs),
            gamma=self.gamma,
            lam=self.lam,
        )
        grads, metrics = self.gradient(net, trajectory, target, trajectory.valid)
        net, opt = self.update(net, opt, all_mean(grads), remaining)
        return net, opt, metrics

    @fragment
    def gradient(
        self, net: ActorCritic, trajectory: Transition, target: jax.Array, valid: jax.Array
    ) -> tuple[ActorCritic, dict[str, Mean]]:
        """The gradient of the loss over the `valid` steps."""

        def loss(net: ActorCritic) -> tuple[jax.Array, dict[str, Mean]]:
            rows = {"target": target, "valid": valid, "normalised": self.normalise_advantage}
            return self.loss(**actor_critic(net, trajectory.obs, trajectory.action, **rows))

        return jax.grad(loss, has_aux=True)(net)
