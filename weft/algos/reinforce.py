"""REINFORCE with a baseline: Williams 1992; Sutton and Barto 2018, section 13.4.

Returns are the rewards to the end of the episode, without bootstrapping. Steps of an episode that does not end within
the rollout are left out, so `horizon` should be longer than most episodes.
"""

from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
import optax

from weft.algos.on_policy import OnPolicy
from weft.fragments import all_mean, fragment
from weft.metrics import Mean
from weft.nets.actor_critic import Net
from weft.ops.losses import Targets, count, normalise, policy_gradient, squared_error
from weft.ops.memory import unroll
from weft.ops.returns import discounted_returns, ends_within
from weft.ops.rollout import Transition
from weft.ops.updates import scale_by_adam_or_rmsprop


@dataclass(frozen=True, kw_only=True)
class Reinforce(OnPolicy):
    """REINFORCE with a learned baseline: returns of whole episodes, no bootstrapping."""

    num_envs: int = 8
    horizon: int = 512
    lr: float = 5e-3
    # Whole returns make the first gradients of the value huge; clipping them would suppress those of the policy.
    max_grad_norm: float = 1e3
    normalise_advantage: bool = True
    optimiser: Literal["adam", "rmsprop"] = "adam"
    optimiser_epsilon: float = 1e-5  # added to the denominator; smaller is better where gradients are small
    rmsprop_decay: float = 0.99  # of the mean squared gradient
    rmsprop_momentum: float = 0.0

    @fragment
    def learn(
        self, net: Net, opt: optax.OptState, trajectory: Transition, remaining: jax.Array, key: jax.Array
    ) -> tuple[Net, optax.OptState, dict[str, Mean]]:
        """One gradient step on the trajectory."""
        del key
        grads, metrics = self.gradient(net, trajectory, self.targets(net, trajectory))
        net, opt = self.update(net, opt, all_mean(grads), remaining)
        return net, opt, metrics

    def targets(self, net: Net, trajectory: Transition) -> Targets:
        """The return G and G minus the baseline V(s), on the steps of complete episodes."""
        returns = discounted_returns(
            trajectory.reward, **trajectory.ends, v_t=jnp.zeros_like(trajectory.reward), gamma=self.gamma
        )
        inputs, _ = unroll(net, trajectory.obs, trajectory.past)
        complete = ends_within(trajectory.terminated | trajectory.truncated)
        return Targets(returns, returns - net.value(inputs), trajectory.valid & complete)

    @fragment
    def gradient(self, net: Net, trajectory: Transition, targets: Targets) -> tuple[Net, dict[str, Mean]]:
        """The gradient of the loss over the valid steps."""
        valid, steps = targets.valid, count(targets.valid)
        advantage = normalise(targets.advantage, valid) if self.normalise_advantage else targets.advantage

        def loss(net: Net) -> tuple[jax.Array, dict[str, Mean]]:
            inputs, _ = unroll(net, trajectory.obs, trajectory.past)
            policy = net.policy(inputs)
            # Equation 13.11 of Sutton and Barto: -(G - V(s)) log pi(a | s), with G - V(s) fixed, and the loss of V.
            policy_loss = policy_gradient(policy.log_prob(trajectory.action), advantage=advantage, valid=valid)
            value_loss = squared_error(net.value(inputs), targets.value, valid=valid)
            entropy = Mean.of(policy.entropy(), valid)
            total = policy_loss.total + self.value_weight * value_loss.total - self.entropy_weight * entropy.total
            return total / steps, {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy}

        return jax.grad(loss, has_aux=True)(net)

    def make_optimiser(self) -> optax.GradientTransformation:
        return scale_by_adam_or_rmsprop(
            self.optimiser,
            max_grad_norm=self.max_grad_norm,
            epsilon=self.optimiser_epsilon,
            decay=self.rmsprop_decay,
            momentum=self.rmsprop_momentum,
        )
