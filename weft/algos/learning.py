"""What algorithms that learn from a table share: gradient steps, each on a batch that was drawn from it.

A subclass gives `build` and `loss`. `loss` gets items, leaves [n, B, ...]: n steps that follow each other, through the
ends of episodes. It gives what is minimised, and how far off each item was: its next priority.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, cast

import jax
import jax.numpy as jnp
import optax

from weft.algorithm import Algorithm
from weft.envs.timestep import Env
from weft.errors import WeftError
from weft.fragments import all_mean, fragment
from weft.metrics import Mean
from weft.nets.encoder import TorsoKind
from weft.nets.mlp import Activation
from weft.ops.rollout import Transition
from weft.replay.interface import Batch, Replay

Loss = tuple[jax.Array, tuple[jax.Array, dict[str, Mean]]]
"""What is minimised; how far off each item was, [B]; metrics."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Learner:
    """What learning changes."""

    net: Any
    target: Any
    """An earlier `net`, which targets are computed with."""
    opt: optax.OptState
    updates: jax.Array
    """How many there were."""


@dataclass(frozen=True, kw_only=True)
class Learning(Algorithm):
    """Settings and gradient steps; abstract."""

    num_envs: int = 8
    updates: int = 8
    """Gradient steps per iteration."""
    batch_size: int = 64
    """Items per gradient step."""
    prioritised: bool = False
    """Whether items are drawn by how far off they were when last seen."""
    importance_exponent: float = 0.4
    """How much of the bias that this brings is taken back."""
    hidden: tuple[int, ...] = (128, 128)
    """Widths of the hidden layers."""
    activation: Activation = "relu"
    """What follows every hidden layer."""
    torso: TorsoKind = "auto"
    """What comes before the hidden layers: `auto` is what the observations ask for."""
    gamma: float = 0.99
    """Discount per step."""
    lr: float = 1e-3
    """Step size."""
    max_grad_norm: float = 10.0
    """Gradients longer than this are shortened to it."""
    target_mix: float = 1.0
    """How much of the target network is replaced when it is."""
    target_period: int = 1
    """Gradient steps from one replacement to the next."""

    @abstractmethod
    def build(self, env: Env, key: jax.Array) -> Any:
        """The network that is trained."""

    @abstractmethod
    def loss(self, net: Any, learner: Learner, items: Transition, weight: jax.Array, key: jax.Array) -> Loss:
        """The loss of `net`, which is the learner's own; gradients are of this one. `weight` is that of each item."""

    def seen(self, steps: Any) -> Transition:
        """Steps of a table as what was seen: whoever inserted them as such has nothing to do."""
        return steps

    def beginner(self, env: Env, key: jax.Array) -> Learner:
        """A learner before its first gradient step."""
        net = self.build(env, key)
        opt = self._optimiser().init(cast(optax.Params, net))
        return Learner(net, jax.tree.map(jnp.copy, net), opt, jnp.zeros((), jnp.int32))

    def improve(
        self, env: Env, table: Replay, learner: Learner, replay: Any, key: jax.Array
    ) -> tuple[Learner, Any, dict[str, Mean]]:
        """The gradient steps of one iteration."""
        shape = self._shape(env)

        def update(carry: tuple[Learner, Any], key: jax.Array) -> tuple[tuple[Learner, Any], dict[str, Mean]]:
            (learner, replay), (key_sample, key_update) = carry, jax.random.split(key)
            replay, batch = table.sample(replay, key_sample, shape)
            learner, priority, metrics = self.learn(learner, batch, key_update)
            if self.prioritised:
                replay = table.update(replay, batch.key, priority)
            return (learner, replay), metrics

        keys = jax.random.split(key, self.updates)
        (learner, replay), metrics = jax.lax.scan(update, (learner, replay), keys)
        return learner, replay, jax.tree.map(lambda x: jnp.sum(x, axis=0), metrics)

    @fragment
    def learn(self, learner: Learner, batch: Batch, key: jax.Array) -> tuple[Learner, jax.Array, dict[str, Mean]]:
        """One gradient step, how far off each item was, and metrics."""
        items = batch.flattened
        weight = jnp.ones_like(items.probability)
        if self.prioritised:
            # Relative to the least likely item of the batch, so that weights only ever shorten steps.
            weight = jnp.power(items.probability / jnp.min(items.probability), -self.importance_exponent)
        grads, errors, metrics = self.gradient(learner, self.seen(items.steps), weight, key)
        return self.update(learner, all_mean(grads)), errors.reshape(batch.shape), metrics

    @fragment
    def gradient(self, learner: Learner, items: Transition, weight: jax.Array, key: jax.Array) -> Any:
        """The gradient of the loss, how far off each item was, and metrics."""
        grads, (errors, metrics) = jax.grad(self.loss, has_aux=True)(learner.net, learner, items, weight, key)
        return grads, errors, metrics

    @fragment
    def update(self, learner: Learner, grads: Any) -> Learner:
        """One optimiser step, and one of the target network."""
        steps, opt = self._optimiser().update(grads, learner.opt, learner.net)
        net = cast(Any, optax.apply_updates(learner.net, steps))
        count = learner.updates + 1
        mix = jnp.where(count % self.target_period == 0, self.target_mix, 0.0)
        target = jax.tree.map(lambda new, old: mix * new + (1.0 - mix) * old, net, learner.target)
        return Learner(net, target, opt, count)

    def _shape(self, env: Env) -> tuple[int, ...]:
        """That of a batch: so many items for every environment, if it divides so, and replicas can share it."""
        size, rest = divmod(self.batch_size * env.num_envs, self.num_envs)
        if rest:
            raise WeftError(
                f"batch_size={self.batch_size} cannot be shared out like {self.num_envs} environments, {env.num_envs} "
                "to a replica: make it a multiple of the replicas"
            )
        return (size,) if size % env.num_envs else (env.num_envs, size // env.num_envs)

    def _optimiser(self) -> optax.GradientTransformation:
        return optax.chain(optax.clip_by_global_norm(self.max_grad_norm), optax.adam(self.lr))
