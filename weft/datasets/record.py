"""Recording what is played while it is played: every step of every environment goes to a dataset.

Steps gather in the wrapper's memory, so that none has to leave the device by itself. Once in an iteration, when the
statistics of episodes are taken out, all go to host code (`weft.host`), wherever a layout has the environments stepped.
Each replica writes files of its own, named by its first environment; the number of an episode tells its environment,
and is the same under any layout (see `weft.datasets.dataset`). An evaluation beside the training plays in the same
wrapper, and is not recorded.

>>> import jax, tempfile
>>> from weft.envs import make
>>> from weft.host import own_objects
>>> from weft.datasets.dataset import look
>>> with tempfile.TemporaryDirectory() as folder, own_objects() as kept:
...     env = record(make("gymnax:CartPole-v1", 2), folder, name="CartPole-v1", num_envs=2, steps=3)
...     state, _ = env.reset(jax.random.key(0))
...     for key in jax.random.split(jax.random.key(1), 3):
...         state, _ = env.step(state, jnp.zeros(2, int), key)
...     state, _ = env.episodes(state)
...     kept.close()
...     look(folder)[1]
6
"""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from weft.algorithm import Algorithm, name_of
from weft.datasets.dataset import Source, Steps, check_new
from weft.datasets.recording import Rows
from weft.envs.timestep import Env, TimeStep
from weft.envs.world import World
from weft.envs.wrappers.wrapper import WrappedEnv, WrappedState, Wrapper
from weft.errors import WeftError
from weft.fragments import replica
from weft.graph.marks import count_calls
from weft.graph.trace import trace
from weft.host import host_call, new_token, objects

OF_STEP = ("reward", "terminated", "truncated", "final_obs", "valid")
NOT_RECORDED = -1


def record(env: Env, path: str | Path, *, name: str, num_envs: int, steps: int) -> Env:
    """The environments with every step written to a folder.

    `num_envs` is their number over all replicas, and `steps` how many each takes before `episodes` is called.
    """
    inside = env
    while isinstance(inside, WrappedEnv):
        if type(inside.wrapper).merge is not Wrapper.merge:
            raise WeftError(
                f"{type(inside.wrapper).__name__} learns, and what it learned is not part of a dataset: record inside "
                "of it, by giving it as one of the wrappers"
            )
        inside = inside.env
    source = Source(name, env.observation_space, env.action_space)
    return WrappedEnv(env, Record(str(path), source.write(), num_envs, steps))


def recorded(world: World, path: str | Path, algo: Algorithm) -> World:
    """The world that an algorithm trains in with every step recorded in a new dataset, inside of its wrappers."""
    if algo.steps_per_iteration is not None:
        name = name_of(algo)
        raise WeftError(f"{name} takes no steps in its environment, so there is nothing to record: leave --record out")
    check_new(path)
    inside = Inside(replace(world, wrappers=()), str(path), algo.num_envs, _steps(algo, world))
    inside(1)
    return World(inside, (), world.wrappers)


def unrecorded(state: Any) -> Any:
    """A state of a recorded world as it would be without being recorded."""

    def is_recorded(part: Any) -> bool:
        return isinstance(part, WrappedState) and isinstance(part.wrapper, Seen)

    return jax.tree.map(lambda part: part.inner if is_recorded(part) else part, state, is_leaf=is_recorded)


@dataclass(frozen=True)
class Inside:
    """Environments of a world, recorded: a function of their number."""

    world: World
    path: str
    num_envs: int
    steps: int

    def __call__(self, num_envs: int) -> Env:
        name, made = self.world.name, self.world(num_envs)
        return record(made, self.path, name=name, num_envs=self.num_envs, steps=self.steps)

    def __str__(self) -> str:
        return self.world.name


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Seen:
    """The steps of an iteration so far, for every environment."""

    token: jax.Array
    row: jax.Array
    """Which environment of the run it is."""
    obs: Any
    """What the next action is chosen by."""
    steps: Steps
    """Leaves [T, B, ...]."""
    count: jax.Array
    """How many steps there are."""


@dataclass(frozen=True)
class Record(Wrapper):
    """The state is what was seen and is not written yet."""

    path: str
    source: str
    """What is played on, as text: a value like all of a layer's settings."""
    num_envs: int
    steps: int

    def init(self, obs: Any, trained: Seen | None) -> tuple[Seen, Any]:
        envs = len(jax.tree.leaves(obs)[0])
        like = {**Source.read(self.source).step, "valid": jax.ShapeDtypeStruct((), bool)}
        steps = jax.tree.map(lambda leaf: jnp.zeros((self.steps, envs, *leaf.shape), leaf.dtype), like)
        row = replica()[0] * envs + jnp.arange(envs, dtype=jnp.int32)
        # Who keeps what was learned before evaluates it.
        row = row if trained is None else jnp.full_like(row, NOT_RECORDED)
        return Seen(new_token(envs), row, obs, steps, jnp.zeros(envs, jnp.int32)), obs

    def transform_with_action(self, state: Seen, action: Any, timestep: TimeStep) -> tuple[Seen, TimeStep]:
        step = {"obs": state.obs, "action": action, **{name: getattr(timestep, name) for name in OF_STEP}}
        now = state.count[0]
        steps = jax.tree.map(lambda all_, one: all_.at[now].set(one.astype(all_.dtype)), state.steps, step)
        return replace(state, obs=timestep.obs, steps=steps, count=state.count + 1), timestep

    def merge(self, state: Seen) -> Seen:
        given = state.row, state.count, state.steps
        token, _ = host_call(partial(_record, self), (), state.token, *given, name="env.record")
        return replace(state, token=token, count=jnp.zeros_like(state.count))


def _steps(algo: Algorithm, world: World) -> int:
    """How many steps each environment takes in an iteration."""
    jaxpr = trace(algo.settle(asynchronous=False), world(algo.num_envs)).jaxpr.jaxpr
    if (found := count_calls(jaxpr, "env.episodes")) != 1:
        raise WeftError(
            f"{name_of(algo)} calls env.episodes {found} times in an iteration: to record what is played, it "
            "must be called once, after all steps"
        )
    return count_calls(jaxpr, "env")


def _record(layer: Record, token: np.ndarray, row: np.ndarray, count: np.ndarray, steps: Steps) -> tuple[()]:
    """Record steps of some rows, with what the run keeps for just these."""
    if row[0] == NOT_RECORDED:
        return ()
    if count[0] != layer.steps:
        raise WeftError(
            f"{count[0]} steps were taken before env.episodes was called, and {layer.steps} are in an iteration: to "
            "record what is played, it must be called once, after all steps"
        )
    key, kept = (layer, row.tobytes()), objects()
    with kept.lock:
        rows = kept.get(key) or kept.add(key, _rows(layer, row))
    rows(steps, anew=token[0] == 0)
    return ()


def _rows(layer: Record, row: np.ndarray) -> Rows:
    return Rows(layer.path, Source.read(layer.source), rows=row.tolist(), num_envs=layer.num_envs)
