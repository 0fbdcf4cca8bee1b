"""Environments by name: `make("gym:CartPole-v1", num_envs=16)`.

A name is `family:id`. A family is one adapter: a module with two functions, `make(id, num_envs, **options)` and
`available()`. To add a library, write the module and add its name to `ADAPTERS`. An adapter is imported when its family
is first asked for.

An id without a family is looked up in each family, in the order of `ADAPTERS`. A name `module:attribute` is a class or
function of the user's own.

>>> resolve("CartPole-v1"), resolve("LunarLander-v3")
('gymnax:CartPole-v1', 'gym:LunarLander-v3')
"""

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

from weft.envs.timestep import Env
from weft.errors import WeftError, unknown
from weft.modules import import_module

ADAPTERS = {
    "gymnax": "weft.envs.adapters.gymnax",
    "gym": "weft.envs.adapters.gymnasium",
    "envpool": "weft.envs.adapters.envpool",
    "brax": "weft.envs.adapters.brax",
}
"""The module of each family's adapter."""

EnvSpec = str | Callable[..., Any]
"""How a user names an environment: `family:id`, `id`, `module:attribute`, or a class or function."""


def make(spec: EnvSpec, num_envs: int, **options: Any) -> Env:
    """Returns a batch of `num_envs` environments; `options` are passed to the adapter."""
    if num_envs < 1:
        raise WeftError(f"num_envs is {num_envs}, but must be at least 1")
    family, _, env_id = resolve(spec).partition(":") if isinstance(spec, str) else ("", "", "")
    if family in ADAPTERS:
        return _adapter(family).make(env_id, num_envs, **options)
    return _adapter("gym").make_custom(spec, num_envs, **options)


def resolve(spec: str) -> str:
    """Returns the full name of an environment: `family:id` or `module:attribute`."""
    family, colon, _ = spec.partition(":")
    if colon:
        if family not in ADAPTERS:
            _check_module(family)
        return spec
    for family in ADAPTERS:
        if spec in _adapter(family).available():
            return f"{family}:{spec}"
    raise unknown("environment", spec, available())


def available() -> dict[str, str]:
    """Returns the full name of every environment that `make` knows, with a one-line description."""
    return {f"{family}:{env_id}": line for family in ADAPTERS for env_id, line in _adapter(family).available().items()}


def _check_module(name: str) -> None:
    """Fails unless `name` is a module that can be imported: it then holds an environment of the user's own."""
    try:
        import_module(name, "your own environment")
    except WeftError:
        raise unknown("environment family or module", name, ADAPTERS) from None


def _adapter(family: str) -> ModuleType:
    return importlib.import_module(ADAPTERS[family])
