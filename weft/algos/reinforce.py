"""REINFORCE (Williams 1992) with a learned baseline (Sutton and Barto 2018, section 13.4).

Returns are the rewards that were seen to the end of the episode, and nothing else: steps of an episode that has not
ended when the rollout does are left out, so `horizon` should be longer than most episodes.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax

from weft.algos.on_policy import OnPolicy
from weft.fragment import all_mean, fragment
from weft.metrics import Mean
from weft.nets.actor_critic import ActorCritic
from weft.ops.losses import actor_critic
from weft.ops.returns import discounted_returns, ends_within
from weft.ops.rollout import Transition


@dataclass(frozen=True, kw_only=True)
class Reinforce(OnPolicy):
    """REINFORCE with a learned baseline: returns of whole episodes, no bootstrapping."""

    num_envs: int = 8
    horizon: int = 512
    lr: float = 5e-3
    # Whole returns make the value's first gradients huge; clipped with them the policy's would vanish, and then leap.
    max_grad_norm: float = 1e3

    @fragment
    def learn(
        self, net: ActorCritic, opt: optax.OptState, trajectory: Transition, remaining: jax.Array, key: jax.Array
    ) -> tuple[ActorCritic, optax.OptState, dict[str, Mean]]:
        del key
        returns = discounted_returns(
            trajectory.reward,
            terminated=trajectory.terminated,
            truncated=trajectory.truncated,
            v_t=jnp.zeros_like(trajectory.reward),
            gamma=self.gamma,
        )
        known = trajectory.valid & ends_within(trajectory.terminated | trajectory.truncated)
        grads, metrics = self.gradient(net, trajectory, returns, known)
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
