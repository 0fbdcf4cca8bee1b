"""What an algorithm is trained on: an environment by name or by hand, its options, and what it is wrapped in.

A `World` is a function from a number of environments to an `Env`, and a value that can be written down.

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
    """Environments of one kind; `source` is a full name, or whatever the user gave."""

    source: EnvSpec
    options: tuple[tuple[str, Any], ...] = ()
    wrappers: tuple[str, ...] = ()

    @classmethod
    def of(cls, env: EnvSpec, options: Mapping[str, Any] | None = None, wrappers: Sequence[str] = ()) -> "World":
        """The world that `env` names: see `weft.envs`.

        A function of the number of environments gives an `Env`; one that takes nothing, or a subclass of
        `gymnasium.Env`, gives an environment of Gymnasium's kind; either may be named as `module:attribute`.
        """
        if isinstance(env, World):
            return env
        source = registry.resolve(env) if isinstance(env, str) else env
        return cls(source, tuple(sorted((options or {}).items())), tuple(wrappers))

    @property
    def name(self) -> str:
        return self.source if isinstance(self.source, str) else getattr(self.source, "__name__", str(self.source))

    def __call__(self, num_envs: int) -> Env:
        made = _made(self.source, num_envs, self.options)
        return wrap(made, self.wrappers)


def _made(source: EnvSpec, num_envs: int, options: tuple[tuple[str, Any], ...]) -> Env:
    if isinstance(source, str) and source.partition(":")[0] not in registry.ADAPTERS:
        source = import_attribute(source, "your own environment")
    if isinstance(source, str) or not _takes_a_number(source):
        return registry.make(source, num_envs, **dict(options))
    if options:
        raise WeftError(f"{source} makes its own environments: it takes no option {options[0][0]!r}")
    return source(num_envs)


@functools.cache
def _takes_a_number(source: Callable[..., Any]) -> bool:
    """Whether a function must be given something: the number of environments."""
    required = [
        parameter
        for parameter in inspect.signature(source).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    return bool(required)
