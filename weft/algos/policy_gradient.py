"""What A2C and REINFORCE share: one gradient step per rollout, towards targets that each gives in its own way."""

from abc import abstractmethod
from dataclasses import dataclass

import jax
import optax

from weft.algos.on_policy import OnPolicy
from weft.fragment import all_mean, fragment
from weft.metrics import Mean
from weft.nets.actor_critic import Net
from weft.ops.losses import actor_critic
from weft.ops.memory import unroll
from weft.ops.rollout import Transition


@dataclass(frozen=True, kw_only=True)
class PolicyGradient(OnPolicy):
    """One gradient step per rollout; abstract."""

    @fragment
    def learn(
        self, net: Net, opt: optax.OptState, trajectory: Transition, remaining: jax.Array, key: jax.Array
    ) -> tuple[Net, optax.OptState, dict[str, Mean]]:
        del key
        grads, metrics = self.gradient(net, trajectory, *self.targets(net, trajectory))
        net, opt = self.update(net, opt, all_mean(grads), remaining)
        return net, opt, metrics

    @abstractmethod
    def targets(self, net: Net, trajectory: Transition) -> tuple[jax.Array, jax.Array]:
        """What every step's return should be, [T, B], and which steps to learn from."""

    @fragment
    def gradient(
        self, net: Net, trajectory: Transition, target: jax.Array, valid: jax.Array
    ) -> tuple[Net, dict[str, Mean]]:
        """The gradient of the loss over the `valid` steps."""

        def loss(net: Net) -> tuple[jax.Array, dict[str, Mean]]:
            seen, _ = unroll(net, trajectory.obs, trajectory.past)
            rows = {"target": target, "valid": valid, "normalised": self.normalise_advantage}
            return self.loss(**actor_critic(net, seen, trajectory.action, **rows))

        return jax.grad(loss, has_aux=True)(net)
