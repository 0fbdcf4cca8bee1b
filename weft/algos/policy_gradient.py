"""What A2C, IMPALA and REINFORCE share: one gradient step per rollout, towards targets that each gives its own way."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Literal

import jax
import optax

from weft.algos.on_policy import OnPolicy
from weft.fragments import all_mean, fragment
from weft.metrics import Mean
from weft.nets.actor_critic import Net
from weft.ops.losses import normalise, policy_gradient, squared_error
from weft.ops.memory import unroll
from weft.ops.rollout import Transition


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Targets:
    """What a gradient step goes towards, fixed before it is taken; leaves [T, B]."""

    value: jax.Array
    advantage: jax.Array
    valid: jax.Array
    """Which steps to learn from."""


@dataclass(frozen=True, kw_only=True)
class PolicyGradient(OnPolicy):
    """One gradient step per rollout; abstract."""

    horizon: int = 20
    lr: float = 5e-3
    max_grad_norm: float = 40.0
    normalise_advantage: bool = False
    optimiser: Literal["adam", "rmsprop"] = "rmsprop"
    """How gradients become steps."""
    # Large: steps then grow small as gradients do. A policy that solves its task gets little but noise for a gradient,
    # and steps whose size does not depend on it lead away again.
    epsilon: float = 0.1
    """What is added to the gradients' scale before they are divided by it: give less where returns are small."""
    decay: float = 0.99
    """How much of the gradients' mean square RMSProp keeps from step to step."""
    momentum: float = 0.0
    """How much of its last step RMSProp takes again."""

    @fragment
    def learn(
        self, net: Net, opt: optax.OptState, trajectory: Transition, remaining: jax.Array, key: jax.Array
    ) -> tuple[Net, optax.OptState, dict[str, Mean]]:
        del key
        grads, metrics = self.gradient(net, trajectory, self.targets(net, trajectory))
        net, opt = self.update(net, opt, all_mean(grads), remaining)
        return net, opt, metrics

    @abstractmethod
    def targets(self, net: Net, trajectory: Transition) -> Targets:
        """What every step's value should be, and how much better than expected its action was."""

    @fragment
    def gradient(self, net: Net, trajectory: Transition, targets: Targets) -> tuple[Net, dict[str, Mean]]:
        """The gradient of the loss over the valid steps."""
        valid = targets.valid
        advantage = normalise(targets.advantage, valid) if self.normalise_advantage else targets.advantage

        def loss(net: Net) -> tuple[jax.Array, dict[str, Mean]]:
            seen, _ = unroll(net, trajectory.obs, trajectory.past)
            policy = net.policy(seen)
            return self.loss(
                policy=policy_gradient(policy.log_prob(trajectory.action), advantage=advantage, valid=valid),
                value=squared_error(net.value(seen), targets.value, valid=valid),
                entropy=Mean.of(policy.entropy(), valid),
            )

        return jax.grad(loss, has_aux=True)(net)

    def _optimiser(self) -> optax.GradientTransformation:
        clip = optax.clip_by_global_norm(self.max_grad_norm)
        if self.optimiser == "adam":
            return optax.chain(clip, optax.scale_by_adam(eps=self.epsilon))
        again = optax.trace(decay=self.momentum) if self.momentum else optax.identity()
        return optax.chain(clip, optax.scale_by_rms(decay=self.decay, eps=self.epsilon, eps_in_sqrt=False), again)
