"""Environments by name: `make("gymnax:CartPole-v1", num_envs=16)`.

A spec is `family:id`. A family is a module here with two functions, `make(id, num_envs)` and `available()`; adding one
is one entry in `FAMILIES`. Modules are imported when first asked for, so that nothing happens for a family not used.
"""

import importlib
from types import ModuleType

from weft.envs.timestep import Env
from weft.errors import WeftError, unknown

FAMILIES = {"gymnax": "weft.envs.gymnax"}


def make(spec: str, num_envs: int) -> Env:
    """A batch of `num_envs` environments of the kind that `spec` names, as `family:id`."""
    family, colon, env_id = spec.partition(":")
    if not colon:
        raise unknown("environment", spec, available())
    if family not in FAMILIES:
        raise unknown("environment family", family, FAMILIES)
    if num_envs < 1:
        raise WeftError(f"num_envs is {num_envs}: at least one environment is needed")
    return _module(family).make(env_id, num_envs)


def available() -> dict[str, str]:
    """Every spec that `make` knows, with one line about it."""
    return {f"{family}:{env_id}": line for family in FAMILIES for env_id, line in _module(family).available().items()}


def _module(family: str) -> ModuleType:
    return importlib.import_module(FAMILIES[family])
