"""Wrappers: functions from an environment to an environment with one change.

They nest. `wrap` applies wrappers by name, the innermost first:

>>> from weft.envs import make
>>> env = wrap(make("gymnax:Pendulum-v1", 8), ["time_limit=100", "frame_stack=2", "normalise_obs"])
>>> env.num_envs, env.observation_space
(8, Box(-inf, inf, (6,), float32))
"""

import inspect
from collections.abc import Callable, Sequence

from weft.envs.timestep import Env
from weft.envs.wrappers.frames import frame_stack
from weft.envs.wrappers.limits import clip_reward, time_limit
from weft.envs.wrappers.normalise import normalise_obs, normalise_reward
from weft.envs.wrappers.wrapper import reset_with_statistics, unwrap
from weft.errors import WeftError, unknown

__all__ = [
    "WRAPPERS",
    "clip_reward",
    "frame_stack",
    "normalise_obs",
    "normalise_reward",
    "reset_with_statistics",
    "time_limit",
    "unwrap",
    "wrap",
]

WRAPPERS: dict[str, Callable[..., Env]] = {
    function.__name__: function for function in (time_limit, frame_stack, clip_reward, normalise_obs, normalise_reward)
}


def wrap(env: Env, specs: Sequence[str]) -> Env:
    """Applies the wrappers that `specs` name, as `name` or `name=value`, the innermost first."""
    for spec in specs:
        name, equals, value = spec.partition("=")
        if name not in WRAPPERS:
            raise unknown("wrapper", name, WRAPPERS)
        env = WRAPPERS[name](env, *_arguments(name, value if equals else None))
    return env


def _arguments(name: str, value: str | None) -> list[int | float]:
    """Returns the arguments of a wrapper after the environment. Every wrapper takes one number or none."""
    parameters = list(inspect.signature(WRAPPERS[name]).parameters.values())[1:]
    if not parameters:
        if value is not None:
            raise WeftError(f"wrapper {name}={value}: {name} takes no value; write {name}")
        return []
    (parameter,) = parameters
    if value is None and parameter.default is not parameter.empty:
        return []
    try:
        return [parameter.annotation(value or "")]
    except ValueError:
        number = "a whole number" if parameter.annotation is int else "a number"
        spec = name if value is None else f"{name}={value}"
        raise WeftError(f"wrapper {spec}: write {name}={parameter.name.upper()}, with {number}") from None
