"""Episode statistics in an environment's state, so that a rollout never leaves the device to record them.

>>> import jax.numpy as jnp
>>> statistics = EpisodeStatistics.start(2)
>>> for ended in ([False, False], [True, False]):
...     statistics = statistics.record(jnp.ones(2), ended=jnp.array(ended), valid=jnp.ones(2, bool))
>>> statistics, metrics = statistics.pop_metrics()
>>> float(metrics["episode_return"].total), float(metrics["episode_return"].count)
(2.0, 1.0)
"""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from weft.metrics import Mean


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class EpisodeStatistics:
    """Per environment: the current episode, and totals over the episodes finished since the last `pop_metrics`."""

    running_return: Float[Array, " B"]
    running_length: Float[Array, " B"]
    return_total: Float[Array, " B"]
    length_total: Float[Array, " B"]
    finished: Float[Array, " B"]

    @classmethod
    def start(cls, num_envs: int) -> "EpisodeStatistics":
        """Returns the statistics before the first step."""
        return cls(*(jnp.zeros(num_envs, jnp.float32) for _ in range(5)))

    def record(
        self, reward: Float[Array, " B"], *, ended: Bool[Array, " B"], valid: Bool[Array, " B"]
    ) -> "EpisodeStatistics":
        """Counts one step of every environment where `valid` is true."""
        episode_return = self.running_return + jnp.where(valid, reward, 0.0)
        episode_length = self.running_length + valid.astype(jnp.float32)
        ended = ended & valid
        return EpisodeStatistics(
            running_return=jnp.where(ended, 0.0, episode_return),
            running_length=jnp.where(ended, 0.0, episode_length),
            return_total=self.return_total + jnp.where(ended, episode_return, 0.0),
            length_total=self.length_total + jnp.where(ended, episode_length, 0.0),
            finished=self.finished + ended.astype(jnp.float32),
        )

    def pop_metrics(self) -> tuple["EpisodeStatistics", dict[str, Mean]]:
        """Returns the statistics with totals reset to zero, and the means over finished episodes."""
        count = self.finished.sum()
        metrics = {
            "episode_return": Mean(self.return_total.sum(), count),
            "episode_length": Mean(self.length_total.sum(), count),
        }
        zeros = jnp.zeros_like(self.finished)
        return replace(self, return_total=zeros, length_total=zeros, finished=zeros), metrics
