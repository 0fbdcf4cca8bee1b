"""Q-networks: the value of each discrete action, as a number or as a distribution over returns.

>>> import jax, jax.numpy as jnp
>>> spaces = gym.spaces.Box(-1, 1, (4,)), gym.spaces.Discrete(2)
>>> net = QNet(*spaces, hidden=(8,), activation="relu", dueling=True, atoms=5, key=jax.random.key(0))
>>> net(jnp.zeros((3, 4))).shape
(3, 2, 5)
"""

from typing import Any

import equinox as eqx
import gymnasium as gym
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from weft.envs.spaces import is_masked, without_mask
from weft.errors import WeftError
from weft.nets.actor_critic import Torso
from weft.nets.encoder import TorsoKind
from weft.nets.heads import check_mask
from weft.nets.mlp import Activation, Linear


class QNet(eqx.Module):
    """Maps observations to the value of each action, or to the `atoms` logits of its distribution over returns.

    With `dueling` the value is the sum of a state value and an advantage (Wang et al. 2016).
    """

    torso: Torso
    choices: Linear
    common: Linear | None
    atoms: int = eqx.field(static=True)
    masked: bool = eqx.field(static=True)

    def __init__(
        self,
        observation_space: gym.Space,
        action_space: gym.Space,
        *,
        hidden: tuple[int, ...],
        activation: Activation,
        key: jax.Array,
        torso: TorsoKind = "auto",
        dueling: bool = False,
        atoms: int = 1,
    ):
        if not isinstance(action_space, gym.spaces.Discrete):
            raise WeftError(
                f"this algorithm needs a Discrete action space, and this is {action_space}: for continuous actions use "
                "sac, td3, ddpg or d4pg, offline continuous_cql"
            )
        self.masked, self.atoms = is_masked(observation_space), atoms
        if is_masked(observation_space):
            check_mask(observation_space["action_mask"], action_space)
        key_torso, key_choices, key_common = jax.random.split(key, 3)
        self.torso = Torso(without_mask(observation_space), hidden, activation=activation, torso=torso, key=key_torso)
        features, count = self.torso.size, int(action_space.n)
        self.choices = Linear(features, count * atoms, scale=1.0, key=key_choices)
        self.common = Linear(features, atoms, scale=1.0, key=key_common) if dueling else None

    def __call__(self, obs: Any) -> Float[Array, "*batch actions atoms"]:
        features = self.torso(obs["observation"] if self.masked else obs)
        out = self.choices(features).reshape(*features.shape[:-1], -1, self.atoms)
        if self.common is None:
            return out
        return self.common(features)[..., None, :] + out - jnp.mean(out, axis=-2, keepdims=True)

    def allowed(self, obs: Any) -> jax.Array | None:
        """Returns which actions are valid, or None if observations have no action mask."""
        return obs["action_mask"].astype(bool) if self.masked else None
