"""Environments by name: `make("gym:CartPole-v1", num_envs=16)`.

A spec is `family:id`. A family is a module here with two functions, `make(id, num_envs, **options)` and `available()`;
adding one is one entry in `FAMILIES`. Modules are imported when first asked for, so that nothing happens for a family
not used. An id alone is looked for in the families in turn, and `module:attribute` is an environment of the user's own.

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

FAMILIES = {
    "gymnax": "weft.envs.gymnax",
    "gym": "weft.envs.gymnasium",
    "envpool": "weft.envs.envpool",
    "brax": "weft.envs.brax",
}
EnvSpec = str | Callable[..., Any]


def make(spec: EnvSpec, num_envs: int, **options: Any) -> Env:
    """A batch of `num_envs` environments of the kind that `spec` names; `options` are its family's."""
    if num_envs < 1:
        raise WeftError(f"num_envs is {num_envs}: at least one environment is needed")
    family, _, env_id = resolve(spec).partition(":") if isinstance(spec, str) else ("", "", "")
    if family in FAMILIES:
        return _module(family).make(env_id, num_envs, **options)
    return _module("gym").own(spec, num_envs, **options)


def resolve(spec: str) -> str:
    """The full name of an environment: `family:id`, or `module:attribute`."""
    family, colon, _ = spec.partition(":")
    if colon:
        if family not in FAMILIES:
            _refuse_unknown(family)
        return spec
    for family in FAMILIES:
        if spec in _module(family).available():
            return f"{family}:{spec}"
    raise unknown("environment", spec, available())


def available() -> dict[str, str]:
    """Every spec that `make` knows, with one line about it."""
    return {f"{family}:{env_id}": line for family in FAMILIES for env_id, line in _module(family).available().items()}


def _refuse_unknown(family: str) -> None:
    """Fail unless `family` is a module with environments of the user's own."""
    try:
        import_module(family, "your own environment")
    except WeftError:
        raise unknown("environment family or module", family, FAMILIES) from None


def _module(family: str) -> ModuleType:
    return importlib.import_module(FAMILIES[family])
