"""Builds the network that an algorithm's settings describe.

>>> import gymnasium as gym, jax
>>> settings = {"hidden": (64,), "activation": "tanh", "shared": True, "torso": "auto", "squash": False}
>>> spaces = gym.spaces.Box(-1, 1, (4,)), gym.spaces.Discrete(2)
>>> type(build(*spaces, memory="lstm", memory_size=8, key=jax.random.key(0), **settings)).__name__
'Recurrent'
"""

from typing import Any

import gymnasium as gym
import jax

from weft.nets.actor_critic import ActorCritic, Net
from weft.nets.recurrent import MemoryKind, Recurrent


def build(
    observation_space: gym.Space,
    action_space: gym.Space,
    *,
    memory: MemoryKind,
    memory_size: int,
    key: jax.Array,
    **settings: Any,
) -> Net:
    """Returns an actor-critic network, recurrent unless `memory` is "none"."""
    if memory == "none":
        return ActorCritic(observation_space, action_space, key=key, **settings)
    return Recurrent(observation_space, action_space, memory=memory, memory_size=memory_size, key=key, **settings)
