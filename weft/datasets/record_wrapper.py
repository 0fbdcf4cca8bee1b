"""An environment wrapper that records every step of a training run in a dataset.

The wrapper collects steps in its state on the device. Once per iteration, in `episodes`, host code writes them (see
`weft.host`), in whichever role the layout steps the environments. Each replica writes its own files, named by its first
environment. An episode's number depends on its environment only, so it is the same under every layout (see
`weft.datasets.parquet`). Evaluations during training use the same wrapper, but are not recorded.

>>> import jax, tempfile
>>> from weft.datasets.load import describe
>>> from weft.envs import make
>>> from weft.host import own_objects
>>> with tempfile.TemporaryDirectory() as folder, own_objects() as objects_of_run:
...     env = record(make("gymnax:CartPole-v1", 2), folder, name="CartPole-v1", num_envs=2, steps=3)
...     state, _ = env.reset(jax.random.key(0))
...     for key in jax.random.split(jax.random.key(1), 3):
...         state, _ = env.step(state, jnp.zeros(2, int), key)
...     state, _ = env.episodes(state)
...     objects_of_run.close()
...     describe(folder)[1]
6
"""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from weft.datasets.dataset import Source, Steps
from weft.datasets.episode_writer import EpisodeWriter
from weft.datasets.parquet import check_new_folder
from weft.envs.timestep import Env, TimeStep
from weft.envs.world import World
from weft.envs.wrappers.wrapper import WrappedEnv, WrappedState, Wrapper
from weft.errors import WeftError
from weft.host import host_call, new_token, objects

TIMESTEP_FIELDS = ("reward", "terminated", "truncated", "final_obs", "valid")
NOT_RECORDED = -1
"""The row number of environments that only evaluate."""


def record(env: Env, path: str | Path, *, name: str, num_envs: int, steps: int) -> Env:
    """Environments that write every step to a folder.

    `num_envs` is the number of environments in all replicas; `steps` is how many steps each takes before `episodes` is
    called. `name` is the environment's name in the dataset.
    """
    wrapped = env
    while isinstance(wrapped, WrappedEnv):
        if type(wrapped.wrapper).merge is not Wrapper.merge:
            raise WeftError(
                f"{type(wrapped.wrapper).__name__} learns statistics, and these are not part of a dataset: give it as "
                "one of the wrappers of the run, so that the environment is recorded inside of it"
            )
        wrapped = wrapped.env
    source = Source(name, env.observation_space, env.action_space)
    return WrappedEnv(env, RecordWrapper(str(path), source.to_json(), num_envs, steps))


def record_world(world: World, path: str | Path, *, num_envs: int, steps: int) -> World:
    """The world with every step recorded in a new dataset, inside of the world's wrappers; see `record`."""
    check_new_folder(path)
    recorded = RecordedEnvs(replace(world, wrappers=()), str(path), num_envs, steps)
    recorded(1)  # Raises now if the environment cannot be recorded.
    return World(recorded, (), world.wrappers)


def remove_recording(state: Any) -> Any:
    """The state of a recorded world as the state of the same world without recording."""

    def is_recorded(part: Any) -> bool:
        return isinstance(part, WrappedState) and isinstance(part.wrapper, RecordedSteps)

    return jax.tree.map(lambda part: part.inner if is_recorded(part) else part, state, is_leaf=is_recorded)


@dataclass(frozen=True)
class RecordedEnvs:
    """A function from a number of environments to recorded environments of a world."""

    world: World
    path: str
    num_envs: int
    steps: int

    def __call__(self, num_envs: int) -> Env:
        env = self.world(num_envs)
        return record(env, self.path, name=self.world.name, num_envs=self.num_envs, steps=self.steps)

    def __str__(self) -> str:
        return self.world.name


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class RecordedSteps:
    """The state of a `RecordWrapper`: the steps of each environment that are not written yet."""

    token: jax.Array
    row: jax.Array
    """The number of each environment in the run, or NOT_RECORDED."""
    obs: Any
    """The observation before the next action."""
    steps: Steps
    """Leaves [T, B, ...]."""
    count: jax.Array
    """The number of steps so far."""


@dataclass(frozen=True)
class RecordWrapper(Wrapper):
    """Collects the steps of an iteration, and writes them at its end."""

    path: str
    source: str
    """The dataset's source as JSON; a wrapper's settings must be values."""
    num_envs: int
    steps: int

    def init(self, obs: Any, trained: RecordedSteps | None) -> tuple[RecordedSteps, Any]:
        envs = len(jax.tree.leaves(obs)[0])
        step = {**Source.from_json(self.source).step, "valid": jax.ShapeDtypeStruct((), bool)}
        steps = jax.tree.map(lambda leaf: jnp.zeros((self.steps, envs, *leaf.shape), leaf.dtype), step)
        row = jnp.arange(envs, dtype=jnp.int32)
        # Only an evaluation starts from a trained state.
        row = row if trained is None else jnp.full_like(row, NOT_RECORDED)
        return RecordedSteps(new_token(envs), row, obs, steps, jnp.zeros((), jnp.int32)), obs

    def transform_with_action(
        self, state: RecordedSteps, action: Any, timestep: TimeStep
    ) -> tuple[RecordedSteps, TimeStep]:
        fields = {name: getattr(timestep, name) for name in TIMESTEP_FIELDS}
        step = {"obs": state.obs, "action": action, **fields}
        steps = jax.tree.map(lambda leaf, value: leaf.at[state.count].set(value.astype(leaf.dtype)), state.steps, step)
        return replace(state, obs=timestep.obs, steps=steps, count=state.count + 1), timestep

    def merge(self, state: RecordedSteps) -> RecordedSteps:
        arguments = state.row, state.count, state.steps
        token, _ = host_call(partial(_write, self), (), state.token, *arguments, name="env.record")
        return replace(state, token=token, count=jnp.zeros_like(state.count))


def _write(wrapper: RecordWrapper, token: np.ndarray, row: np.ndarray, count: np.ndarray, steps: Steps) -> tuple[()]:
    """Write the steps of a replica's environments with the run's writer for these rows."""
    if row[0] == NOT_RECORDED:
        return ()
    if count != wrapper.steps:
        raise WeftError(
            f"env.episodes was called after {count} steps of an iteration's {wrapper.steps}: to record a run, the "
            "algorithm must call it once per iteration, after all steps"
        )
    key, run_objects = (wrapper, row.tobytes()), objects()
    with run_objects.lock:
        writer = run_objects.get(key) or run_objects.add(key, _open_writer(wrapper, row))
    writer.write(steps, restarted=token[0] == 0)
    return ()


def _open_writer(wrapper: RecordWrapper, row: np.ndarray) -> EpisodeWriter:
    return EpisodeWriter(wrapper.path, Source.from_json(wrapper.source), rows=row.tolist(), num_envs=wrapper.num_envs)
