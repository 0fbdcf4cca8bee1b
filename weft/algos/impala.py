"""IMPALA: Espeholt et al. 2018, "Scalable Distributed Deep-RL with Importance Weighted Actor-Learner Architectures".

One gradient step per short rollout, with V-trace. The behaviour policy may be older than the learning policy, so its
distributions are stored with the actions and V-trace weights every step by the importance ratio. Where both policies
are equal this is A2C.
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
from weft.ops.rollout import Transition, state_values
from weft.ops.updates import scale_by_adam_or_rmsprop
from weft.ops.vtrace import vtrace


@dataclass(frozen=True, kw_only=True)
class IMPALA(OnPolicy):
    """Importance-weighted actor-critic: one gradient step per short rollout, with V-trace."""

    horizon: int = 20
    lr: float = 5e-3
    max_grad_norm: float = 40.0
    normalise_advantage: bool = False
    optimiser: Literal["adam", "rmsprop"] = "rmsprop"
    optimiser_epsilon: float = 0.1  # added to the denominator; smaller is better where gradients are small
    rmsprop_decay: float = 0.99  # of the mean squared gradient
    rmsprop_momentum: float = 0.0
    lam: float = 1.0  # lambda of the return (remark 2): 1 sums all rewards, 0 only one before the bootstrap value
    rho_bar: float = 1.0  # limit of the ratios that weight errors: a higher one moves the values' fixed point to pi
    c_bar: float = 1.0  # limit of the ratios that propagate errors: a lower one has less variance and learns slower
    rho_bar_policy: float = 1.0  # limit of the ratios in the policy gradient

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
        """v_s (equation 1) and the advantage rho_s (r_s + gamma v_{s+1} - V(x_s)) (section 4.2)."""
        inputs, v_tm1, v_t = state_values(net, trajectory)
        log_prob = net.policy(inputs).log_prob(trajectory.action)
        corrected = vtrace(
            log_prob - trajectory.extra.log_prob(trajectory.action),
            trajectory.reward,
            **trajectory.ends,
            v_tm1=v_tm1,
            v_t=v_t,
            gamma=self.gamma,
            lam=self.lam,
            rho_bar=self.rho_bar,
            c_bar=self.c_bar,
            rho_bar_policy=self.rho_bar_policy,
        )
        return Targets(corrected.target, corrected.advantage, trajectory.valid)

    @fragment
    def gradient(self, net: Net, trajectory: Transition, targets: Targets) -> tuple[Net, dict[str, Mean]]:
        """The gradient of the loss over the valid steps."""
        valid, steps = targets.valid, count(targets.valid)
        advantage = normalise(targets.advantage, valid) if self.normalise_advantage else targets.advantage

        def loss(net: Net) -> tuple[jax.Array, dict[str, Mean]]:
            inputs, _ = unroll(net, trajectory.obs, trajectory.past)
            policy = net.policy(inputs)
            # Section 4.2: -A log pi(a | x) + c_v (v_s - V(x))^2 / 2 - c_e H(pi), with A fixed.
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
