"""A Brax environment without physics, which compiles fast."""

from typing import Any

import jax
import jax.numpy as jnp

from weft.envs.adapters import brax

# weft's import of Brax silences its warnings and prints.
envs: Any = brax._brax()


class Ball(envs.Env):
    """A ball pushed along a line from a random position. Terminates at a distance of more than 2 from zero."""

    def reset(self, rng: jax.Array) -> Any:
        place = jax.random.uniform(rng, (2,), minval=-0.5, maxval=0.5)
        return envs.State(None, place, jnp.zeros(()), jnp.zeros(()), {}, {"key": rng})

    def step(self, state: Any, action: jax.Array) -> Any:
        place = jnp.stack([state.obs[0] + action[0], state.obs[1]])
        # Python numbers, as in Brax's own environments: they become arrays of weak type.
        return state.replace(obs=place, reward=1.0, done=jnp.where(jnp.abs(place[0]) > 2.0, 1, 0))

    @property
    def observation_size(self) -> int:
        return 2

    @property
    def action_size(self) -> int:
        return 1

    @property
    def backend(self) -> str:
        return "none"


envs.register_environment("ball", Ball)
