"""Where an environment of a host game comes from: a Gymnasium id, or a class or function of the user's own.

A `Source` is a value: two of the same id and arguments are equal, two of a user's own are if they are the same object.
What it can tell of its environments (their spaces, whether they mask actions, how long a step takes) it finds out from
one that it makes, tries and throws away, once in a process.
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

from weft.envs.pools.failures import EnvFailed
from weft.envs.pools.nested import with_mask
from weft.envs.pools.options import OPTIONS
from weft.envs.spaces import map_space
from weft.errors import WeftError, unknown
from weft.modules import import_attribute, import_module

TRIED_STEPS = 50
TRIED_SECONDS = 0.2


@dataclass(frozen=True)
class Arguments:
    """Keyword arguments as a value."""

    items: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "Arguments":
        return cls(tuple(sorted(given.items())))

    def __hash__(self) -> int:
        # A value may be a list, which has no hash; its text does for telling apart what is different.
        return hash(repr(self.items))


@dataclass(frozen=True)
class Source:
    """What makes environments, under the name that messages give them."""

    name: str
    maker: str | Callable[..., gym.Env]
    arguments: Arguments = Arguments()

    def factory(self) -> Callable[[], gym.Env]:
        """A function that makes one environment; it can be pickled, and needs nothing of weft to run."""
        arguments = dict(self.arguments.items)
        if not isinstance(self.maker, str):
            return functools.partial(self.maker, **arguments)
        # Checks of every call's order and types are for those who write environments: they cost more than some of them.
        spec = copy.deepcopy(registration._find_spec(self.maker))
        spec.order_enforce, spec.disable_env_checker = False, True
        return functools.partial(gym.make, spec, **arguments)

    @property
    def observation_space(self) -> gym.Space:
        return _facts(self).observation_space

    @property
    def action_space(self) -> gym.Space:
        return _facts(self).action_space

    @property
    def masked(self) -> bool:
        """Whether observations hold an action mask, taken from `info`."""
        return _facts(self).masked

    @property
    def step_seconds(self) -> float:
        """How long one step of one environment takes, about."""
        return _step_seconds(self)


def registered(env_id: str, arguments: Mapping[str, Any]) -> Source:
    """The source of a Gymnasium id, which may be `module:id` like Gymnasium's own."""
    module_name, colon, short_id = env_id.rpartition(":")
    if colon:
        import_module(module_name, "your own environment")
    try:
        spec = registration._find_spec(short_id)
        creator = _loaded(spec.entry_point)
    except gym.error.UnregisteredEnv:
        raise unknown("gym environment", env_id, gym.registry) from None
    except (ImportError, gym.error.DependencyNotInstalled) as error:
        raise WeftError(f"gym:{env_id} cannot be made: {error}") from error
    _check_arguments(f"gym:{env_id}", creator, arguments, ("max_episode_steps",))
    return Source(f"gym:{env_id}", spec.id, Arguments.of(arguments))


def own(given: str | Callable[..., gym.Env], arguments: Mapping[str, Any]) -> Source:
    """The source of a class or a function that makes environments, or of the text `module:attribute` for one."""
    name = given if isinstance(given, str) else f"{given.__module__}:{getattr(given, '__qualname__', repr(given))}"
    maker: Any = import_attribute(given, "your own environment") if isinstance(given, str) else given
    if not callable(maker) or (isinstance(maker, type) and not issubclass(maker, gym.Env)):
        raise WeftError(
            f"{name} makes no environment: give a subclass of gymnasium.Env, or a function that returns one"
        )
    _check_arguments(name, maker, arguments)
    return Source(name, cast(Callable[..., gym.Env], maker), Arguments.of(arguments))


@dataclass(frozen=True)
class _Facts:
    observation_space: gym.Space
    action_space: gym.Space
    masked: bool


@functools.cache
def _facts(source: Source) -> _Facts:
    env = _made(source)
    try:
        _, info = env.reset(seed=0)
        observation_space, action_space = env.observation_space, env.action_space
    except Exception as error:
        raise EnvFailed(f"{source.name} failed when it was first reset: {type(error).__name__}: {error}") from error
    finally:
        env.close()
    for space in (observation_space, action_space):
        map_space(lambda _: None, space)
    masked = isinstance(info, dict) and info.get("action_mask") is not None
    observed = with_mask(observation_space, action_space) if masked else None
    return _Facts(observed or observation_space, action_space, observed is not None)


@functools.cache
def _step_seconds(source: Source) -> float:
    env = _made(source)
    try:
        env.reset(seed=0)
        env.action_space.seed(0)
        taken: list[float] = []
        while len(taken) < TRIED_STEPS and sum(taken) < TRIED_SECONDS:
            action, began = env.action_space.sample(), time.perf_counter()
            _, _, terminated, truncated, _ = env.step(action)
            taken.append(time.perf_counter() - began)
            if terminated or truncated:
                env.reset()
        return statistics.median(taken)
    except Exception:
        # Random play may be against the rules. It goes wrong in the pool too, or it does not matter.
        return 0.0
    finally:
        env.close()


def _made(source: Source) -> gym.Env:
    try:
        env = source.factory()()
    except Exception as error:
        raise EnvFailed(f"{source.name} cannot be made: {type(error).__name__}: {error}") from error
    if not isinstance(env, gym.Env):
        raise WeftError(f"{source.name} made {env!r}, which is not a gymnasium.Env")
    return env


def _loaded(entry_point: Any) -> Any:
    if not isinstance(entry_point, str):
        return entry_point
    with warnings.catch_warnings():
        # What others' packages deprecate in each other is not for us to say; Box2D even crashes where it is an error.
        warnings.simplefilter("ignore", DeprecationWarning)
        return registration.load_env_creator(entry_point)


def _check_arguments(name: str, maker: Any, given: Iterable[str], also: tuple[str, ...] = ()) -> None:
    try:
        parameters = inspect.signature(maker).parameters.values()
    except (TypeError, ValueError):
        return
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    known = {parameter.name for parameter in parameters if parameter.kind is not parameter.POSITIONAL_ONLY}
    for option in given:
        if option not in known | set(also):
            raise unknown(f"option of {name}", option, [*OPTIONS, *also, *known])
