"""What offline algorithms share: no step is taken, all that is learned from was recorded before.

`weft eval RUN --episodes 100 --record DIR` records a dataset, `weft train bc ENV --dataset DIR` learns from it; also
from Minari's, as `--dataset minari:ID`. The environment gives its spaces, and evaluates what was learned
(`--eval-every`). What counts as steps of the training are the steps of the dataset that were drawn: as many as it has
are once through it, in the mean.

A subclass gives `build` and `loss` (see `weft.algos.learning`), and `player`.
"""

from dataclasses import dataclass
from typing import Any, Literal

import gymnasium as gym
import jax
import jax.numpy as jnp

from weft.algorithm import name_of
from weft.algos.learning import Learner, Learning
from weft.datasets.dataset_replay import HostDatasetReplay, load_device_table, table_spec_for
from weft.datasets.load import describe
from weft.envs.spaces import dtype, map_space
from weft.envs.timestep import Env
from weft.envs.wrappers.wrapper import WrappedEnv, Wrapper
from weft.errors import WeftError
from weft.metrics import Mean
from weft.ops.distributions import choices
from weft.ops.rollout import Transition
from weft.replay.device import DeviceReplay


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class State:
    """Everything that one iteration hands to the next."""

    learner: Learner
    replay: Any
    key: jax.Array
    env: None = None
    """No environment is stepped, so nothing is learned about it."""

    @property
    def net(self) -> Any:
        return self.learner.net


@dataclass(frozen=True, kw_only=True)
class Offline(Learning):
    """Settings and the loop around learning from a dataset; abstract."""

    dataset: str = ""
    """What to learn from: a folder that was recorded, or `minari:ID`."""
    replay: Literal["device", "host"] = "device"
    """Where its steps are: on the device they are faster, on the host they need not fit there."""
    batch_size: int = 256

    def __post_init__(self) -> None:
        if self.prioritised:
            raise WeftError("steps of a dataset are all drawn alike: leave prioritised out")

    @property
    def steps_per_iteration(self) -> int:
        return self.updates * self.batch_size

    @property
    def item_length(self) -> int:
        """Steps of what is sampled."""
        return 1

    @property
    def table(self) -> DeviceReplay | HostDatasetReplay:
        spec = table_spec_for(self.dataset, rows=self.num_envs, length=self.item_length)
        return HostDatasetReplay(self.dataset, spec) if self.replay == "host" else DeviceReplay(spec)

    def init(self, env: Env, key: jax.Array) -> State:
        self._check(env)
        key_net, key_replay, key = jax.random.split(key, 3)
        table = self.table
        if isinstance(table, DeviceReplay):
            replay = load_device_table(table, self.dataset, env.num_envs, key_replay)
        else:
            replay = table.init(None, key_replay)
        return State(self.beginner(env, key_net), replay, key)

    def step(self, env: Env, state: State) -> tuple[State, dict[str, Mean]]:
        key, key_learn = jax.random.split(state.key)
        learner, replay, metrics = self.improve(env, self.table, state.learner, state.replay, key_learn)
        return State(learner, replay, key), metrics

    def seen(self, steps: Any) -> Transition:
        return Transition(**steps, extra=(), valid=jnp.ones_like(steps["terminated"]))

    def _check(self, env: Env) -> None:
        """Refuse a dataset of something else, and an environment that would have to be stepped."""
        name = name_of(self)
        if not self.dataset:
            raise WeftError(f"{name} learns from a dataset: give one, as --dataset DIR (`weft eval --record` makes it)")
        source, _ = describe(self.dataset)
        for what in ("observation_space", "action_space"):
            theirs, ours = getattr(source, what), getattr(env, what)
            if _form(theirs) != _form(ours):
                raise WeftError(
                    f"the dataset {self.dataset} was recorded on {source.env}, with {what} {theirs}, and here it is "
                    f"{ours}: give the same environment, in the same wrappers"
                )
        while isinstance(env, WrappedEnv):
            if type(env.wrapper).merge is not Wrapper.merge:
                wrapper = type(env.wrapper).__name__
                raise WeftError(f"{wrapper} learns from the steps that are taken, and {name} takes none: leave it out")
            env = env.env


def _form(space: gym.Space) -> Any:
    """What must be alike for two spaces to have the same arrays, and the same choices."""
    return map_space(lambda part: (part.shape, dtype(part), choices(part)), space)
