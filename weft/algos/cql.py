"""Conservative Q-learning (Kumar et al. 2020), for discrete actions: CQL(H) on double Q-learning.

Learned offline, Q-values of actions that nobody took are never corrected, and the largest is chosen just because it is
too large. So the loss also presses down what all choices are worth, softly the best of them most, and lifts what was
done: `alpha` times log sum exp Q(s, .) - Q(s, a), the paper's equation 4. What was never done is then not overrated,
and a policy better than the recorded one is found where the recorded steps say that there is one.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from weft.algorithm import Play
from weft.algos.learning import Learner, Loss
from weft.algos.offline import Offline
from weft.envs.timestep import Env
from weft.metrics import Mean
from weft.nets.q import QNet
from weft.ops.conservative import conservative
from weft.ops.losses import average
from weft.ops.n_step import at_step, n_step
from weft.ops.q_learning import chosen, huber
from weft.ops.q_learning import greedy as best_of
from weft.ops.rollout import Transition


@dataclass(frozen=True, kw_only=True)
class CQL(Offline):
    """Conservative Q-learning from a dataset, for discrete actions."""

    target_period: int = 100
    alpha: float = 1.0
    """How much what was not done is pressed down."""
    double: bool = True
    """Whether the network chooses what the target network values."""
    dueling: bool = False
    """Whether values of choices are a common value and advantages."""
    n_step: int = 1
    """Rewards in a target before the value that it is completed by."""

    @property
    def item_length(self) -> int:
        return self.n_step

    def build(self, env: Env, key: jax.Array) -> QNet:
        settings = {name: getattr(self, name) for name in ("hidden", "activation", "torso", "dueling")}
        return QNet(env.observation_space, env.action_space, key=key, **settings)

    def loss(self, net: QNet, learner: Learner, items: Transition, weight: jax.Array, key: jax.Array) -> Loss:
        del weight, key
        obs, action, valid = jax.tree.map(lambda x: x[0], (items.obs, items.action, items.valid))
        q, goal = net(obs), self._goal(learner.net, learner.target, items)
        value = chosen(q, action)[..., 0]
        error = goal - value
        reported = {
            "loss": huber(error),
            "conservative_loss": conservative(q[..., 0], action, net.allowed(obs)),
            "value": value,
        }
        metrics = {name: Mean.of(rows, valid) for name, rows in reported.items()}
        total = average(metrics["loss"]) + self.alpha * average(metrics["conservative_loss"])
        return total, (jnp.abs(error), metrics)

    def player(self, env: Env, net: QNet, *, greedy: bool) -> tuple[Any, Play]:
        def play(memory: Any, obs: Any, start: jax.Array, key: jax.Array) -> tuple[Any, Any]:
            q = net(obs)[..., 0]
            # The policy that the loss is about: choices are as likely as the exponential of what they are worth.
            return memory, best_of(q if greedy else q + jax.random.gumbel(key, q.shape), net.allowed(obs))

        return (), play

    def _goal(self, net: QNet, target: QNet, items: Transition) -> jax.Array:
        ends = {"terminated": items.terminated, "truncated": items.truncated, "valid": items.valid}
        ahead = n_step(items.reward, **ends, gamma=self.gamma)
        led_to = at_step(items.final_obs, ahead.last)
        best = best_of((net if self.double else target)(led_to)[..., 0], net.allowed(led_to))
        return ahead.reward + ahead.discount * chosen(target(led_to), best)[..., 0]
