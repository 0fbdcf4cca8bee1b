"""Constructors of Gymnasium environments: from a registered id, or from a class or function of the user's own.

A `GymConstructor` is a value: two are equal if they have the same id or the same function, and the same arguments. To
find out the spaces of its environment, whether it masks actions and how long a step takes, it makes one environment,
tries it and closes it. Each of these results is cached for the process.
"""

import copy
import functools
import inspect
import statistics
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import gymnasium as gym
from gymnasium.envs import registration

from weft.envs.adapters.arguments import Arguments
from weft.envs.pools.failures import EnvFailed
from weft.envs.pools.nested import with_action_mask
from weft.envs.pools.options import OPTIONS
from weft.envs.spaces import map_space
from weft.errors import WeftError, unknown
from weft.modules import import_attribute, import_module

TIMED_STEPS = 50
TIMED_SECONDS = 0.2


@dataclass(frozen=True)
class GymConstructor:
    """Makes environments of one kind. `name` appears in messages."""

    name: str
    target: str | Callable[..., gym.Env]
    """A registered id, or a class or function."""
    arguments: Arguments = Arguments()

    def factory(self) -> Callable[[], gym.Env]:
        """Returns a function that makes one environment. It can be pickled and does not need weft."""
        arguments = dict(self.arguments.items)
        if not isinstance(self.target, str):
            return functools.partial(self.target, **arguments)
        # Gymnasium's checks of call order and types help while writing an environment, but can cost more than a step.
        spec = copy.deepcopy(registration._find_spec(self.target))
        spec.order_enforce, spec.disable_env_checker = False, True
        return functools.partial(gym.make, spec, **arguments)

    @property
    def observation_space(self) -> gym.Space:
        return _inspect(self).observation_space

    @property
    def action_space(self) -> gym.Space:
        return _inspect(self).action_space

    @property
    def masked(self) -> bool:
        """Whether the action mask in `info` is part of the observation."""
        return _inspect(self).masked

    @property
    def step_seconds(self) -> float:
        """The approximate duration of one step of one environment."""
        return _time_step(self)


def from_id(env_id: str, arguments: Mapping[str, Any]) -> GymConstructor:
    """Returns the constructor of a registered id. As in Gymnasium, `module:id` imports the module first."""
    module_name, colon, short_id = env_id.rpartition(":")
    if colon:
        import_module(module_name, "your own environment")
    try:
        spec = registration._find_spec(short_id)
        entry_point = _load(spec.entry_point)
    except gym.error.UnregisteredEnv:
        raise unknown("gym environment", env_id, gym.registry) from None
    except (ImportError, gym.error.DependencyNotInstalled) as error:
        raise WeftError(f"gym:{env_id} cannot be made: {error}") from error
    _check_arguments(f"gym:{env_id}", entry_point, arguments, ("max_episode_steps",))
    return GymConstructor(f"gym:{env_id}", spec.id, Arguments.of(arguments))


def from_callable(spec: str | Callable[..., gym.Env], arguments: Mapping[str, Any]) -> GymConstructor:
    """Returns the constructor of a class or function of the user's own, given directly or as `module:attribute`."""
    name = spec if isinstance(spec, str) else f"{spec.__module__}:{getattr(spec, '__qualname__', repr(spec))}"
    target: Any = import_attribute(spec, "your own environment") if isinstance(spec, str) else spec
    if not callable(target) or (isinstance(target, type) and not issubclass(target, gym.Env)):
        raise WeftError(
            f"{name} makes no environment: give a subclass of gymnasium.Env, or a function that returns one"
        )
    _check_arguments(name, target, arguments)
    return GymConstructor(name, cast(Callable[..., gym.Env], target), Arguments.of(arguments))


@dataclass(frozen=True)
class _Inspection:
    observation_space: gym.Space
    action_space: gym.Space
    masked: bool


@functools.cache
def _inspect(constructor: GymConstructor) -> _Inspection:
    env = _make(constructor)
    try:
        _, info = env.reset(seed=0)
        observation_space, action_space = env.observation_space, env.action_space
    except Exception as error:
        raise EnvFailed(f"{constructor.name} failed at its first reset: {type(error).__name__}: {error}") from error
    finally:
        env.close()
    for space in (observation_space, action_space):
        map_space(lambda _: None, space)
    masked = isinstance(info, dict) and info.get("action_mask") is not None
    masked_space = with_action_mask(observation_space, action_space) if masked else None
    return _Inspection(masked_space or observation_space, action_space, masked_space is not None)


@functools.cache
def _time_step(constructor: GymConstructor) -> float:
    env = _make(constructor)
    try:
        env.reset(seed=0)
        env.action_space.seed(0)
        durations: list[float] = []
        while len(durations) < TIMED_STEPS and sum(durations) < TIMED_SECONDS:
            action, started = env.action_space.sample(), time.perf_counter()
            _, _, terminated, truncated, _ = env.step(action)
            durations.append(time.perf_counter() - started)
            if terminated or truncated:
                env.reset()
        return statistics.median(durations)
    except Exception:
        # Random actions may be illegal. A real error of the environment occurs again in the pool, which reports it.
        return 0.0
    finally:
        env.close()


def _make(constructor: GymConstructor) -> gym.Env:
    try:
        env = constructor.factory()()
    except Exception as error:
        raise EnvFailed(f"{constructor.name} cannot be made: {type(error).__name__}: {error}") from error
    if not isinstance(env, gym.Env):
        raise WeftError(f"{constructor.name} made {env!r}, which is not a gymnasium.Env")
    return env


def _load(entry_point: Any) -> Any:
    if not isinstance(entry_point, str):
        return entry_point
    with warnings.catch_warnings():
        # Deprecations inside other packages are not the user's to fix. Box2D crashes if such a warning is an error.
        warnings.simplefilter("ignore", DeprecationWarning)
        return registration.load_env_creator(entry_point)


def _check_arguments(name: str, function: Any, arguments: Iterable[str], extra: tuple[str, ...] = ()) -> None:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    known = {parameter.name for parameter in parameters if parameter.kind is not parameter.POSITIONAL_ONLY}
    for argument in arguments:
        if argument not in known | set(extra):
            raise unknown(f"option of {name}", argument, [*OPTIONS, *extra, *known])
