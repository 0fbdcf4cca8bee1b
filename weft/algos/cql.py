"""Conservative Q-learning (CQL) for discrete actions: Kumar et al. 2020, "Conservative Q-Learning for Offline
Reinforcement Learning".

CQL(H) on double Q-learning, from a dataset. Offline, overestimated Q-values of actions outside of the dataset are never
corrected by trying them. So the loss also lowers log sum_a exp Q(s, a) - Q(s, a_data), weighted by `alpha`.
"""

from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp

from weft.algos.off_policy import OffPolicy
from weft.datasets.batches import DatasetSource
from weft.envs.timestep import Env
from weft.fragments import fragment
from weft.nets.q import QNet
from weft.ops.conservative import conservative_loss
from weft.ops.losses import average, means
from weft.ops.n_step import at_step, first_step, n_step
from weft.ops.q_learning import chosen, greedy, huber
from weft.ops.rollout import Transition
from weft.ops.updates import LearnerState, Loss


@dataclass(frozen=True, kw_only=True)
class CQL(OffPolicy):
    """Conservative Q-learning from a dataset, for discrete actions."""

    dataset: str = ""  # a folder of recorded steps, or minari:ID
    replay: Literal["device", "host"] = "device"  # where the steps are stored: the device is faster, the host larger
    batch_size: int = 256
    target_period: int = 100
    alpha: float = 1.0  # the weight of the conservative loss
    double: bool = True  # whether the network selects the action that the target network evaluates
    dueling: bool = False  # whether Q-values are the sum of a state value and advantages

    @property
    def source(self) -> DatasetSource:
        return DatasetSource(path=self.dataset, on=self.replay, rows=self.num_envs, item_length=self.n_step)

    def build(self, env: Env, key: jax.Array) -> QNet:
        """Q."""
        layers: dict[str, Any] = {"hidden": self.hidden, "activation": self.activation, "torso": self.torso}
        return QNet(env.observation_space, env.action_space, key=key, dueling=self.dueling, **layers)

    @fragment
    def act(self, net: QNet, obs: Any, memory: Any, noise: jax.Array) -> tuple[Any, Any, Any]:
        """pi(a | s) in proportion to exp Q(s, a): the policy of CQL(H). Sampled from Gumbel noise."""
        return greedy(net(obs)[..., 0] + noise, net.allowed(obs)), (), memory

    def loss(self, net: QNet, learner: LearnerState, items: Transition, weight: jax.Array, key: jax.Array) -> Loss:
        """Equation 4: the error of Q-learning plus alpha times the conservative loss."""
        del weight, key
        obs, action, valid = first_step((items.obs, items.action, items.valid))
        q, y = net(obs), self.target(learner.net, learner.target, items)
        q_data = chosen(q, action)[..., 0]
        error = y - q_data
        rows = {"loss": huber(error), "value": q_data}
        rows["conservative_loss"] = conservative_loss(q[..., 0], action, net.allowed(obs))
        metrics = means(rows, valid)
        total = average(metrics["loss"]) + self.alpha * average(metrics["conservative_loss"])
        return total, (jnp.abs(error), metrics)

    def target(self, net: QNet, target: QNet, items: Transition) -> jax.Array:
        """The n-step target y = r + gamma Q'(s', argmax_a Q(s', a)), with Q in place of Q' only if `double`."""
        n_steps = n_step(items.reward, **items.ends, gamma=self.gamma)
        next_obs = at_step(items.final_obs, n_steps.last)
        best = greedy((net if self.double else target)(next_obs)[..., 0], net.allowed(next_obs))
        return n_steps.bootstrap(chosen(target(next_obs), best)[..., 0])
