"""weft: one training loop, projected onto any layout.

An algorithm is written once, as one sequential loop. A layout decides which role runs which part of it, and how many
replicas each role has.

    weft.train(PPO(lr=1e-3), "gymnax:CartPole-v1", layout=weft.layouts.seed(envs=2))

The public names are imported when they are first used, so that `import weft` and `weft --help` do not import JAX.
"""

import importlib
from typing import TYPE_CHECKING, Any

from weft.version import VERSION as __version__

if TYPE_CHECKING:
    from weft.algorithm import Algorithm
    from weft.envs.timestep import Env, TimeStep
    from weft.errors import WeftError
    from weft.fragments import all_gather, all_mean, all_sum, fragment, per_replica, replica, share
    from weft.layout import catalogue as layouts
    from weft.layout.layout import Layout, Role
    from weft.metrics import Mean
    from weft.report.params import load_params, save_params
    from weft.report.update import Observer, Update
    from weft.run import train
    from weft.runtime.check import Comparison, check
    from weft.runtime.driver import Result

__all__ = [
    "Algorithm",
    "Comparison",
    "Env",
    "Layout",
    "Mean",
    "Observer",
    "Result",
    "Role",
    "TimeStep",
    "Update",
    "WeftError",
    "__version__",
    "all_gather",
    "all_mean",
    "all_sum",
    "check",
    "fragment",
    "layouts",
    "load_params",
    "per_replica",
    "replica",
    "save_params",
    "share",
    "train",
]

_MODULES = {
    "Algorithm": "weft.algorithm",
    "Comparison": "weft.runtime.check",
    "Env": "weft.envs.timestep",
    "Layout": "weft.layout.layout",
    "Mean": "weft.metrics",
    "Observer": "weft.report.update",
    "Result": "weft.runtime.driver",
    "Role": "weft.layout.layout",
    "TimeStep": "weft.envs.timestep",
    "Update": "weft.report.update",
    "WeftError": "weft.errors",
    "all_gather": "weft.fragments",
    "all_mean": "weft.fragments",
    "all_sum": "weft.fragments",
    "check": "weft.runtime.check",
    "fragment": "weft.fragments",
    "load_params": "weft.report.params",
    "per_replica": "weft.fragments",
    "replica": "weft.fragments",
    "save_params": "weft.report.params",
    "share": "weft.fragments",
    "train": "weft.run",
}


def __getattr__(name: str) -> Any:
    if name == "layouts":
        value = importlib.import_module("weft.layout.catalogue")
    elif name in _MODULES:
        value = getattr(importlib.import_module(_MODULES[name]), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
