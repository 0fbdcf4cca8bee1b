"""Gradient steps of off-policy algorithms: the learner's state, the loop over batches, optimisers, target networks."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Int

from weft.metrics import Mean
from weft.replay.interface import Batch, Replay

T = TypeVar("T")
Loss = tuple[jax.Array, tuple[jax.Array, dict[str, Mean]]]
"""The loss to minimise; the error of every item, which is its next priority, [B]; metrics."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LearnerState:
    """What gradient steps change."""

    net: Any
    target: Any
    """The target network."""
    opt: optax.OptState
    updates: jax.Array
    """The number of gradient steps so far."""

    @classmethod
    def start(cls, net: Any, optimiser: optax.GradientTransformation) -> "LearnerState":
        """The state before the first gradient step: the target network is a copy of the network."""
        opt = optimiser.init(cast(optax.Params, net))
        return cls(net, jax.tree.map(jnp.copy, net), opt, jnp.zeros((), jnp.int32))

    def apply(
        self, grads: Any, optimiser: optax.GradientTransformation, *, tau: float, target_period: int
    ) -> "LearnerState":
        """The state after one optimiser step and `update_target`."""
        steps, opt = optimiser.update(grads, self.opt, self.net)
        net = cast(Any, optax.apply_updates(self.net, steps))
        updates = self.updates + 1
        target = update_target(self.target, net, tau=tau, period=target_period, updates=updates)
        return LearnerState(net, target, opt, updates)


Learned = tuple[LearnerState, jax.Array, dict[str, Mean]]
"""The state after a gradient step; the error of every item of the batch; metrics."""
Learn = Callable[[LearnerState, Batch, jax.Array], Learned]


def learn_from_table(
    table: Replay,
    learn: Learn,
    learner: LearnerState,
    replay: Any,
    key: jax.Array,
    *,
    updates: int,
    shape: tuple[int, ...],
    prioritised: bool,
) -> tuple[LearnerState, Any, dict[str, Mean]]:
    """`updates` gradient steps: sample a batch, learn from it, set its items' priorities to their errors."""

    def update(carry: tuple[LearnerState, Any], key: jax.Array) -> tuple[tuple[LearnerState, Any], dict[str, Mean]]:
        (learner, replay), (key_sample, key_learn) = carry, jax.random.split(key)
        replay, batch = table.sample(replay, key_sample, shape)
        learner, errors, metrics = learn(learner, batch, key_learn)
        if prioritised:
            replay = table.update(replay, batch.key, errors)
        return (learner, replay), metrics

    (learner, replay), metrics = jax.lax.scan(update, (learner, replay), jax.random.split(key, updates))
    return learner, replay, jax.tree.map(lambda x: jnp.sum(x, axis=0), metrics)


def clipped_adam(lr: float, max_grad_norm: float) -> optax.GradientTransformation:
    """Adam on gradients clipped to a global norm."""
    return optax.chain(optax.clip_by_global_norm(max_grad_norm), optax.adam(lr))


def actor_critic_adam(
    *, lr: float, actor_lr: float, max_grad_norm: float, policy_delay: int
) -> optax.GradientTransformation:
    """Adam with two step sizes: for a network's `actor`, on every `policy_delay`-th gradient step, and for the rest."""
    delayed = optax.conditionally_mask(
        clipped_adam(actor_lr, max_grad_norm), lambda step, **_: (cast(Any, step) + 1) % policy_delay == 0
    )
    return optax.partition({"actor": delayed, "rest": clipped_adam(lr, max_grad_norm)}, _actor_or_rest)


def scale_by_adam_or_rmsprop(
    kind: str, *, max_grad_norm: float, epsilon: float, decay: float, momentum: float
) -> optax.GradientTransformation:
    """Clipped gradients scaled by Adam, or by RMSProp with momentum; without a step size."""
    clip = optax.clip_by_global_norm(max_grad_norm)
    if kind == "adam":
        return optax.chain(clip, optax.scale_by_adam(eps=epsilon))
    trace = optax.trace(decay=momentum) if momentum else optax.identity()
    return optax.chain(clip, optax.scale_by_rms(decay=decay, eps=epsilon, eps_in_sqrt=False), trace)


def update_target(target: T, net: T, *, tau: float, period: int, updates: Int[Array, ""]) -> T:
    """The target network after gradient step number `updates`.

    On every `period`-th step it moves to tau * net + (1 - tau) * target; in between it stays.
    """
    mix = jnp.where(updates % period == 0, tau, 0.0)
    return jax.tree.map(lambda new, old: mix * new + (1.0 - mix) * old, net, target)


def _actor_or_rest(net: Any) -> Any:
    """The optimiser's name for each array."""
    labels = jax.tree.map(lambda _: "rest", net)
    return replace(labels, actor=jax.tree.map(lambda _: "actor", net.actor))
