"""Advantage actor-critic (A2C): Mnih et al. 2016, "Asynchronous Methods for Deep Reinforcement Learning".

The synchronous form of A3C (algorithm S3): one gradient step per short rollout. Returns bootstrap from the critic where
the rollout is cut off.
"""

from dataclasses import dataclass
from typing import Literal

import jax
import optax

from weft.algos.on_policy import OnPolicy
from weft.fragments import all_mean, fragment
from weft.metrics import Mean
from weft.nets.actor_critic import Net
from weft.ops.losses import Targets, count, normalise, policy_gradient, squared_error
from weft.ops.memory import unroll
from weft.ops.returns import lambda_returns
from weft.ops.rollout import Transition, state_values
from weft.ops.updates import scale_by_adam_or_rmsprop


@dataclass(frozen=True, kw_only=True)
class A2C(OnPolicy):
    """Advantage actor-critic: one gradient step per short rollout."""

    horizon: int = 20
    lr: float = 5e-3
    max_grad_norm: float = 40.0
    normalise_advantage: bool = False
    optimiser: Literal["adam", "rmsprop"] = "rmsprop"
    optimiser_epsilon: float = 0.1  # added to the denominator; smaller is better where gradients are small
    rmsprop_decay: float = 0.99  # of the mean squared gradient
    rmsprop_momentum: float = 0.0
    lam: float = 1.0  # lambda of the return: 1 sums all rewards, 0 only one before the bootstrap value

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
        """The return R and the advantage R - V(s)."""
        _, v_tm1, v_t = state_values(net, trajectory)
        returns = lambda_returns(trajectory.reward, **trajectory.ends, v_t=v_t, gamma=self.gamma, lam=self.lam)
        return Targets(returns, returns - v_tm1, trajectory.valid)

    @fragment
    def gradient(self, net: Net, trajectory: Transition, targets: Targets) -> tuple[Net, dict[str, Mean]]:
        """The gradient of the loss over the valid steps."""
        valid, steps = targets.valid, count(targets.valid)
        advantage = normalise(targets.advantage, valid) if self.normalise_advantage else targets.advantage

        def loss(net: Net) -> tuple[jax.Array, dict[str, Mean]]:
            inputs, _ = unroll(net, trajectory.obs, trajectory.past)
            policy = net.policy(inputs)
            # -A log pi(a | s) + c_v (R - V(s))^2 / 2 - c_e H(pi), with A fixed.
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
