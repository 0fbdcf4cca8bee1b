"""weft: one training loop, projected onto any layout.

An algorithm is written once, as one sequential loop. A layout decides who runs which part of it, and how many of each.

    weft.train(PPO(lr=1e-3), "gymnax:CartPole-v1", layout=weft.layouts.seed(envs=2))
"""

from weft.algorithm import Algorithm
from weft.envs.timestep import Env, TimeStep
from weft.errors import WeftError
from weft.fragments import all_mean, all_sum, fragment, replica
from weft.layout import catalogue as layouts
from weft.layout.layout import Layout, Role
from weft.metrics import Mean
from weft.report.params import load_params, save_params
from weft.report.update import Observer, Update
from weft.run import train
from weft.runtime.check import Comparison, check
from weft.runtime.driver import Result
from weft.version import VERSION as __version__

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
    "all_mean",
    "all_sum",
    "check",
    "fragment",
    "layouts",
    "load_params",
    "replica",
    "save_params",
    "train",
]
