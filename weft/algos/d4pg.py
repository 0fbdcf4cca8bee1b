"""Distributional deterministic policy gradients (Barth-Maron et al. 2018): DDPG whose critic learns distributions.

Returns are over several steps, and `prioritised` draws by how unlikely the critic found what it was to learn. It is
distributed, the paper's fourth D, under the layout `apex`.
"""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp

from weft.algos.ddpg import DDPG
from weft.envs.timestep import Env
from weft.nets.continuous import Actor, ActorCriticNets, Critic
from weft.ops.n_step import NStep
from weft.ops.q_learning import atoms, cross_entropy, project


@dataclass(frozen=True, kw_only=True)
class D4PG(DDPG):
    """DDPG with distributions over returns, on fixed atoms."""

    n_step: int = 5
    num_atoms: int = 51
    """Returns that a distribution is over."""
    v_min: float = -150.0
    """The lowest of them."""
    v_max: float = 150.0
    """The highest of them."""

    def build(self, env: Env, key: jax.Array) -> ActorCriticNets:
        return self.controller(env, key, Actor, partial(Critic, atoms=self.num_atoms))

    def mean(self, out: jax.Array) -> jax.Array:
        return jnp.sum(jax.nn.softmax(out) * self._support(), axis=-1)

    def compare(self, out: jax.Array, after: jax.Array, ahead: NStep) -> tuple[jax.Array, jax.Array]:
        goal = project(self._support(), jax.nn.softmax(after), reward=ahead.reward, discount=ahead.discount)
        loss = cross_entropy(out, goal)
        return loss, loss

    def _support(self) -> jax.Array:
        return atoms(self.v_min, self.v_max, self.num_atoms)
