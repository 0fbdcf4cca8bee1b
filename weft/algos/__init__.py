"""The algorithms, by the names that the command line knows them by."""

from weft.algorithm import Algorithm
from weft.algos.a2c import A2C
from weft.algos.ppo import PPO
from weft.algos.reinforce import Reinforce

ALGOS: dict[str, type[Algorithm]] = {"reinforce": Reinforce, "a2c": A2C, "ppo": PPO}
