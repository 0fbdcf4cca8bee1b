"""Deep Q-networks (Mnih et al. 2015), with what came after as switches; all together they are Rainbow without noise.

- `double` chooses by the network and values by the target network (van Hasselt et al. 2016);
- `dueling` adds a value and advantages (Wang et al. 2016);
- `n_step` and `prioritised` are of every algorithm with replay (Schaul et al. 2016);
- `distributional` learns distributions over returns on fixed atoms (Bellemare et al. 2017).
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from weft.algorithm import Play
from weft.algos.learning import Learner, Loss
from weft.algos.off_policy import OffPolicy
from weft.envs.timestep import Env
from weft.fragments import fragment
from weft.metrics import Mean
from weft.nets.q import QNet
from weft.ops.actions import nth, random_actions
from weft.ops.losses import average
from weft.ops.n_step import at_step, n_step
from weft.ops.q_learning import atoms, chosen, cross_entropy, greedy, huber, project
from weft.ops.rollout import Transition


@dataclass(frozen=True, kw_only=True)
class DQN(OffPolicy):
    """Q-learning from replay, for discrete actions."""

    n_step: int = 5
    lr: float = 2.5e-4
    batch_size: int = 128
    target_period: int = 500
    double: bool = True
    """Whether the network chooses what the target network values."""
    dueling: bool = False
    """Whether values of choices are a common value and advantages."""
    distributional: bool = False
    """Whether whole distributions over returns are learned."""
    num_atoms: int = 51
    """Returns that such a distribution is over."""
    v_min: float = -10.0
    """The lowest of them."""
    v_max: float = 10.0
    """The highest of them."""
    epsilon: float = 0.05
    """The share of random actions, once it is there."""
    epsilon_steps: int = 20_000
    """Environment steps over which that share falls from 1, in a line."""
    epsilon_spread: float = 0.0
    """How much less the last environment explores than the first: its share is `epsilon` to the power 1 + this."""

    def build(self, env: Env, key: jax.Array) -> QNet:
        names = ("hidden", "activation", "torso", "dueling")
        settings = {name: getattr(self, name) for name in names}
        count = self.num_atoms if self.distributional else 1
        return QNet(env.observation_space, env.action_space, atoms=count, key=key, **settings)

    @fragment(name="act.noise")
    def noise(self, env: Env, row: jax.Array, iteration: jax.Array, key: jax.Array) -> tuple[jax.Array, Any]:
        """Where to act at random, and how."""
        key_where, key_what = jax.random.split(key)
        shape = (self.horizon, env.num_envs)
        explores = jax.random.uniform(key_where, shape) < self._exploration(row, iteration)
        return explores, random_actions(env.action_space, key_what, shape)

    @fragment
    def act(self, net: QNet, obs: Any, memory: Any, noise: tuple[jax.Array, Any]) -> tuple[Any, Any, Any]:
        """Mostly what is worth most. Random choices keep to the mask too: they are taken from what is left."""
        explores, drawn = noise
        allowed = net.allowed(obs)
        best = greedy(self.value(net, obs), allowed)
        if allowed is not None:
            drawn = nth(allowed, drawn)
        return jnp.where(explores, drawn, best), (), memory

    def value(self, net: QNet, obs: Any) -> jax.Array:
        """What every choice is worth."""
        out = net(obs)
        if not self.distributional:
            return out[..., 0]
        return jnp.sum(jax.nn.softmax(out) * self._support(), axis=-1)

    def player(self, env: Env, net: QNet, *, greedy: bool) -> tuple[Any, Play]:
        share = 0.0 if greedy else self.epsilon

        def play(memory: Any, obs: Any, start: jax.Array, key: jax.Array) -> tuple[Any, Any]:
            key_where, key_what = jax.random.split(key)
            explores = jax.random.uniform(key_where, start.shape) < share
            drawn = random_actions(env.action_space, key_what, start.shape)
            return memory, self.act(net, obs, memory, (explores, drawn))[0]

        return (), play

    @fragment(name="act.errors")
    def errors(self, net: QNet, target: QNet, trajectory: Transition) -> jax.Array:
        """The error of every step by itself."""
        one_step = jax.tree.map(lambda x: x.reshape(1, -1, *x.shape[2:]), trajectory)
        return self._losses(net, net, target, one_step)[1].reshape(trajectory.reward.shape)

    def loss(self, net: QNet, learner: Learner, items: Transition, weight: jax.Array, key: jax.Array) -> Loss:
        del key
        loss, error, value = self._losses(net, learner.net, learner.target, items)
        valid = items.valid[0]
        metrics = {"loss": Mean.of(loss, valid), "value": Mean.of(value, valid)}
        return average(Mean.of(weight * loss, valid)), (error, metrics)

    def _losses(self, net: QNet, chooser: QNet, target: QNet, items: Transition) -> tuple[jax.Array, ...]:
        """The loss of every item, how far off it is, and what it is thought to be worth."""
        ends = {"terminated": items.terminated, "truncated": items.truncated, "valid": items.valid}
        ahead = n_step(items.reward, **ends, gamma=self.gamma)
        obs, action = jax.tree.map(lambda x: x[0], (items.obs, items.action))
        led_to = at_step(items.final_obs, ahead.last)
        best = greedy(self.value(chooser if self.double else target, led_to), target.allowed(led_to))
        after, now = chosen(target(led_to), best), chosen(net(obs), action)
        if self.distributional:
            goal = project(self._support(), jax.nn.softmax(after), reward=ahead.reward, discount=ahead.discount)
            loss = cross_entropy(now, goal)
            return loss, loss, jnp.sum(jax.nn.softmax(now) * self._support(), axis=-1)
        error = jax.lax.stop_gradient(ahead.reward + ahead.discount * after[..., 0]) - now[..., 0]
        return huber(error), jnp.abs(error) + 1e-6, now[..., 0]

    def _exploration(self, row: jax.Array, iteration: jax.Array) -> jax.Array:
        """The share of random actions of every environment."""
        steps = (iteration * self.horizon * self.num_envs).astype(jnp.float32)
        falling = 1.0 - steps / max(self.epsilon_steps, 1)
        place = row.astype(jnp.float32) / max(self.num_envs - 1, 1)
        return jnp.maximum(falling, self.epsilon ** (1.0 + self.epsilon_spread * place))

    def _support(self) -> jax.Array:
        return atoms(self.v_min, self.v_max, self.num_atoms)
