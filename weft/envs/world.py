"""The environment of a run: a name, class or function, with its options and wrappers.

A `World` is a function from a number of environments to an `Env`, and a value that a run can save.

>>> world = World.of("CartPole-v1", wrappers=["time_limit=100"])
>>> world.name, world(2).num_envs
('gymnax:CartPole-v1', 2)
"""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from weft.envs import registry
from weft.envs.registry import EnvSpec
from weft.envs.timestep import Env
from weft.envs.wrappers import wrap
from weft.errors import WeftError
from weft.modules import import_attribute


@dataclass(frozen=True)
class World:
    """Makes batches of one environment. `source` is a full name, or the class or function that the user passed."""

    source: EnvSpec
    options: tuple[tuple[str, Any], ...] = ()
    wrappers: tuple[str, ...] = ()

    @classmethod
    def of(cls, env: EnvSpec, options: Mapping[str, Any] | None = None, wrappers: Sequence[str] = ()) -> "World":
        """Returns the world of an environment, its options and its wrappers.

        `env` is a name (see `weft.envs.registry`), a subclass of `gymnasium.Env`, a function without parameters that
        returns a `gymnasium.Env`, or a function from the number of environments to an `Env`. Classes and functions may
        be named as `module:attribute`.
        """
        if isinstance(env, World):
            return env
        source = registry.resolve(env) if isinstance(env, str) else env
        return cls(source, tuple(sorted((options or {}).items())), tuple(wrappers))

    @property
    def name(self) -> str:
        return self.source if isinstance(self.source, str) else getattr(self.source, "__name__", str(self.source))

    def __call__(self, num_envs: int) -> Env:
        return wrap(_make(self.source, num_envs, self.options), self.wrappers)


def _make(source: EnvSpec, num_envs: int, options: tuple[tuple[str, Any], ...]) -> Env:
    if isinstance(source, str) and source.partition(":")[0] not in registry.ADAPTERS:
        source = import_attribute(source, "your own environment")
    if isinstance(source, str) or not _takes_num_envs(source):
        return registry.make(source, num_envs, **dict(options))
    if options:
        raise WeftError(f"{source} makes its own environments and takes no option {options[0][0]!r}")
    return source(num_envs)


@functools.cache
def _takes_num_envs(source: Callable[..., Any]) -> bool:
    """Returns whether a function has a required parameter: the number of environments."""
    required = [
        parameter
        for parameter in inspect.signature(source).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    return bool(required)
