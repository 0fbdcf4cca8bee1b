"""The algorithms, by their names on the command line."""

from typing import Any

from weft.algorithm import Algorithm
from weft.algos.a2c import A2C
from weft.algos.appo import APPO
from weft.algos.bc import BC
from weft.algos.continuous_cql import ContinuousCQL
from weft.algos.cql import CQL
from weft.algos.d4pg import D4PG
from weft.algos.ddpg import DDPG
from weft.algos.discrete_sac import DiscreteSAC
from weft.algos.dqn import DQN
from weft.algos.impala import IMPALA
from weft.algos.ppo import PPO
from weft.algos.r2d2 import R2D2
from weft.algos.reinforce import Reinforce
from weft.algos.sac import SAC
from weft.algos.td3 import TD3
from weft.errors import WeftError, unknown
from weft.modules import import_module

ALGOS: dict[str, type[Algorithm]] = {
    "reinforce": Reinforce,
    "a2c": A2C,
    "ppo": PPO,
    "impala": IMPALA,
    "appo": APPO,
    "dqn": DQN,
    "r2d2": R2D2,
    "ddpg": DDPG,
    "td3": TD3,
    "d4pg": D4PG,
    "sac": SAC,
    "discrete_sac": DiscreteSAC,
    "bc": BC,
    "cql": CQL,
    "continuous_cql": ContinuousCQL,
}


def load_algorithm(name: str) -> type[Algorithm]:
    """The algorithm class of a name of `ALGOS`, or of `module:Class`."""
    if ":" not in name:
        if name not in ALGOS:
            raise unknown("algorithm", name, ALGOS)
        return ALGOS[name]
    module_name, _, class_name = name.partition(":")
    members = vars(import_module(module_name, "your own algorithm"))
    if class_name not in members:
        raise unknown(f"class in {module_name}", class_name, [key for key, value in members.items() if _is_algo(value)])
    if not _is_algo(members[class_name]):
        raise WeftError(f"{name} is not an algorithm: it must be a subclass of weft.Algorithm")
    if missing := sorted(members[class_name].__abstractmethods__):
        raise WeftError(f"{name} is abstract: it must define {' and '.join(missing)}")
    return members[class_name]


def _is_algo(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, Algorithm)
