"""A recorded dataset as the source of an off-policy algorithm's batches, in place of a replay table.

`weft eval RUN --episodes 100 --record DIR` records a dataset and `weft train bc ENV --dataset DIR` learns from it;
`--dataset minari:ID` reads one of Minari's. The environment only defines the spaces and evaluates the policy
(`--eval-every`): training takes no environment steps. The steps that a run counts are the sampled steps of the dataset.
"""

from dataclasses import dataclass
from typing import Any, Literal

import gymnasium as gym
import jax

from weft.datasets.dataset_replay import HostDatasetReplay, load_device_table, table_spec_for
from weft.datasets.load import describe
from weft.envs.spaces import dtype, map_space
from weft.envs.timestep import Env
from weft.envs.wrappers.wrapper import WrappedEnv, Wrapper
from weft.errors import WeftError
from weft.ops.distributions import choices
from weft.replay.device import DeviceReplay


@dataclass(frozen=True, kw_only=True)
class DatasetSource:
    """A dataset, and where its steps are stored while training."""

    path: str
    """The folder of a recorded dataset, or `minari:ID`."""
    on: Literal["device", "host"]
    rows: int
    """Rows of the table: the environments of the algorithm in all."""
    item_length: int = 1
    """Consecutive steps of a sampled item."""

    @property
    def table(self) -> DeviceReplay | HostDatasetReplay:
        spec = table_spec_for(self.path, rows=self.rows, length=self.item_length)
        return HostDatasetReplay(self.path, spec) if self.on == "host" else DeviceReplay(spec)

    def init(self, env: Env, key: jax.Array, *, algorithm: str) -> Any:
        """The table's state; raises a `WeftError` if the dataset does not fit the environment."""
        self._check(env, algorithm)
        table = self.table
        if isinstance(table, DeviceReplay):
            return load_device_table(table, self.path, env.num_envs, key)
        return table.init(None, key)

    def _check(self, env: Env, algorithm: str) -> None:
        if not self.path:
            raise WeftError(
                f"{algorithm} learns from a dataset: give one, as --dataset DIR (`weft eval --record` records one)"
            )
        source, _ = describe(self.path)
        for name in ("observation_space", "action_space"):
            recorded, given = getattr(source, name), getattr(env, name)
            if _structure(recorded) != _structure(given):
                raise WeftError(
                    f"the dataset {self.path} was recorded on {source.env}, with {name} {recorded}, but this "
                    f"environment has {given}: use the same environment with the same wrappers"
                )
        while isinstance(env, WrappedEnv):
            if type(env.wrapper).merge is not Wrapper.merge:
                wrapper = type(env.wrapper).__name__
                raise WeftError(f"{wrapper} learns from environment steps, and {algorithm} takes none: leave it out")
            env = env.env


def _structure(space: gym.Space) -> Any:
    """Equal for spaces with equal array shapes, types and choices."""
    return map_space(lambda part: (part.shape, dtype(part), choices(part)), space)
