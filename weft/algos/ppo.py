"""Proximal policy optimisation (Schulman et al. 2017).

Several epochs of minibatch steps on one rollout, with the ratio of new to old action probabilities clipped so that more
steps on the same data stop paying off.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax

from weft.algos.on_policy import OnPolicy, values
from weft.errors import WeftError
from weft.fragments import all_mean, fragment
from weft.metrics import Mean
from weft.nets.actor_critic import Net
from weft.ops.batches import fold_time, shuffled, swap_time, take_rows
from weft.ops.losses import clipped_squared_error, clipped_surrogate, normalise, squared_error
from weft.ops.memory import Past, unroll
from weft.ops.returns import gae
from weft.ops.rollout import Transition


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Sample:
    """What the loss needs of each step: leaves are [T, B, ...], or rows, or [B, T, ...] if there is a past."""

    obs: Any
    action: Any
    log_prob: jax.Array
    value: jax.Array
    advantage: jax.Array
    valid: jax.Array
    past: Past | None
    target: jax.Array | None = None
    """Where the value should go, if not to the old value plus the advantage."""


@dataclass(frozen=True, kw_only=True)
class PPO(OnPolicy):
    """Proximal policy optimisation: several clipped epochs on every rollout."""

    lr: float = 2e-3
    epochs: int = 4
    """Passes over every rollout."""
    minibatches: int = 4
    """Gradient steps per pass."""
    lam: float = 0.95
    """Weight of longer returns in the advantages: 1 trusts rewards alone, 0 the value function."""
    clip: float = 0.2
    """How far from 1 the ratio of probabilities is still rewarded."""
    clip_value: bool = False
    """Whether values are also kept within `clip` of the old ones."""
    anneal_clip: bool = False
    """Whether `clip` falls to zero over `anneal_steps`, as the step size does."""

    def __post_init__(self) -> None:
        if self.anneal_clip and not self.anneal_steps:
            raise WeftError("anneal_clip is set but anneal_steps is 0: give the number of steps to anneal over")

    @fragment
    def learn(
        self, net: Net, opt: optax.OptState, trajectory: Transition, remaining: jax.Array, key: jax.Array
    ) -> tuple[Net, optax.OptState, dict[str, Mean]]:
        samples = self.samples(net, trajectory)
        # What is shuffled is single steps, or whole environments where one step is remembered in the next.
        samples = fold_time(samples) if samples.past is None else swap_time(samples)
        minibatches = shuffled(key, len(samples.valid), epochs=self.epochs, minibatches=self.minibatches)

        def minibatch(
            carry: tuple[Net, optax.OptState], rows: jax.Array
        ) -> tuple[tuple[Net, optax.OptState], dict[str, Mean]]:
            net, opt = carry
            grads, metrics = self.gradient(net, take_rows(samples, rows), remaining)
            return self.update(net, opt, all_mean(grads), remaining), metrics

        (net, opt), metrics = lax.scan(minibatch, (net, opt), minibatches)
        return net, opt, jax.tree.map(lambda x: x.sum(axis=0), metrics)

    def samples(self, net: Net, trajectory: Transition) -> Sample:
        """The trajectory with what is fixed while learning from it: old probabilities, values and advantages."""
        v_tm1, advantage, target = self.estimate(net, trajectory)
        return Sample(
            obs=trajectory.obs,
            action=trajectory.action,
            log_prob=trajectory.extra.log_prob(trajectory.action),
            value=v_tm1,
            advantage=advantage,
            valid=trajectory.valid,
            past=trajectory.past,
            target=target,
        )

    def estimate(self, net: Net, trajectory: Transition) -> tuple[jax.Array, jax.Array, jax.Array | None]:
        """Old values, advantages, and where values should go: None is to the one plus the other."""
        # Values are not needed to act: computed here they are two large products, in the rollout many small ones.
        _, v_tm1, v_t = values(net, trajectory)
        advantage = gae(
            trajectory.reward,
            terminated=trajectory.terminated,
            truncated=trajectory.truncated,
            valid=trajectory.valid,
            v_tm1=v_tm1,
            v_t=v_t,
            gamma=self.gamma,
            lam=self.lam,
        )
        return v_tm1, advantage, None

    @fragment
    def gradient(self, net: Net, sample: Sample, remaining: jax.Array) -> tuple[Net, dict[str, Mean]]:
        """The gradient of the clipped loss over one minibatch."""
        clip = self.clip * remaining if self.anneal_clip else self.clip
        valid = sample.valid
        advantage = normalise(sample.advantage, valid) if self.normalise_advantage else sample.advantage
        target = sample.value + sample.advantage if sample.target is None else sample.target

        def loss(net: Net) -> tuple[jax.Array, dict[str, Mean]]:
            seen, _ = unroll(net, sample.obs, sample.past, time=1)
            policy, value = net.policy(seen), net.value(seen)
            log_ratio = policy.log_prob(sample.action) - sample.log_prob
            ratio = jnp.exp(log_ratio)
            if self.clip_value:
                value_loss = clipped_squared_error(value, target, value_old=sample.value, clip=clip, valid=valid)
            else:
                value_loss = squared_error(value, target, valid=valid)
            total, metrics = self.loss(
                policy=clipped_surrogate(ratio, advantage=advantage, clip=clip, valid=valid),
                value=value_loss,
                entropy=Mean.of(policy.entropy(), valid),
            )
            # The KL estimate that is low in variance and never negative (Schulman 2020, k3).
            metrics["approx_kl"] = Mean.of(ratio - 1.0 - log_ratio, valid)
            metrics["clip_fraction"] = Mean.of(jnp.abs(ratio - 1.0) > clip, valid)
            return total, metrics

        return jax.grad(loss, has_aux=True)(net)
