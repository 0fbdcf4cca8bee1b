"""Behaviour cloning (BC): Pomerleau 1989, "ALVINN: An Autonomous Land Vehicle in a Neural Network".

Supervised learning of a policy that makes the recorded actions likely. It uses no rewards, does not exceed the recorded
behaviour, and has no data on states outside of the dataset.
"""

from dataclasses import dataclass
from typing import Any, Literal

import jax

from weft.algos.off_policy import OffPolicy
from weft.datasets.batches import DatasetSource
from weft.envs.timestep import Env
from weft.fragments import fragment
from weft.metrics import Mean
from weft.nets.policy import Policy
from weft.ops.losses import average
from weft.ops.n_step import first_step
from weft.ops.rollout import Transition
from weft.ops.updates import LearnerState, Loss


@dataclass(frozen=True, kw_only=True)
class BC(OffPolicy):
    """Behaviour cloning from a dataset."""

    dataset: str = ""  # a folder of recorded steps, or minari:ID
    replay: Literal["device", "host"] = "device"  # where the steps are stored: the device is faster, the host larger
    batch_size: int = 256

    @property
    def source(self) -> DatasetSource:
        return DatasetSource(path=self.dataset, on=self.replay, rows=self.num_envs)

    def build(self, env: Env, key: jax.Array) -> Policy:
        """pi."""
        layers: dict[str, Any] = {"hidden": self.hidden, "activation": self.activation, "torso": self.torso}
        return Policy(env.observation_space, env.action_space, key=key, **layers)

    @fragment
    def act(self, net: Policy, obs: Any, memory: Any, noise: Any) -> tuple[Any, Any, Any]:
        return net(obs).sample(noise), (), memory

    def loss(self, net: Policy, learner: LearnerState, items: Transition, weight: jax.Array, key: jax.Array) -> Loss:
        """-log pi(a_data | s)."""
        del learner, weight, key
        obs, action, valid = first_step((items.obs, items.action, items.valid))
        policy = net(obs)
        error = -policy.log_prob(action)
        loss = Mean.of(error, valid)
        return average(loss), (error, {"loss": loss, "entropy": Mean.of(policy.entropy(), valid)})
