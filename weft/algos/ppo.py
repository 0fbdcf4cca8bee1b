"""Proximal policy optimisation (PPO): Schulman et al. 2017, "Proximal Policy Optimization Algorithms".

Several epochs of minibatch gradient steps on one rollout. The ratio of new to old action probabilities is clipped, so
that the objective does not reward large changes of the policy.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax

from weft.algos.on_policy import OnPolicy
from weft.errors import WeftError
from weft.fragments import all_mean, fragment
from weft.metrics import Mean
from weft.nets.actor_critic import Net
from weft.ops.batches import in_groups, shuffled, swap_time, take_items
from weft.ops.losses import clipped_squared_error, clipped_surrogate, count, normalise, squared_error
from weft.ops.memory import Past, unroll
from weft.ops.returns import gae
from weft.ops.rollout import Transition, state_values


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Sample:
    """What the loss needs of each step; leaves [T, B, ...] or [rows, ...], for recurrent networks [rows, T, ...]."""

    obs: Any
    action: Any
    log_prob: jax.Array
    value: jax.Array
    advantage: jax.Array
    target: jax.Array
    """The target of the value function."""
    valid: jax.Array
    past: Past | None


@dataclass(frozen=True, kw_only=True)
class PPO(OnPolicy):
    """Proximal policy optimisation: several clipped epochs on every rollout."""

    lr: float = 2e-3
    epochs: int = 4  # passes over every rollout
    minibatches: int = 4  # gradient steps per pass
    lam: float = 0.95  # lambda of generalised advantage estimation: 1 uses rewards only, 0 relies on the value function
    clip: float = 0.2  # epsilon: the objective rewards ratios between 1 - epsilon and 1 + epsilon
    clip_value: bool = False  # whether values are also clipped to within epsilon of the old ones
    anneal_clip: bool = False  # whether epsilon decays linearly to 0 over anneal_steps, like the step size

    def __post_init__(self) -> None:
        if self.anneal_clip and not self.anneal_steps:
            raise WeftError("anneal_clip is set but anneal_steps is 0: give the number of steps to anneal over")

    @fragment
    def learn(
        self, net: Net, opt: optax.OptState, trajectory: Transition, remaining: jax.Array, key: jax.Array
    ) -> tuple[Net, optax.OptState, dict[str, Mean]]:
        """Algorithm 1: `epochs` passes over the trajectory in minibatches."""
        samples = self.samples(net, trajectory)
        if samples.past is not None:  # a recurrent network learns from whole sequences: one item per environment
            samples = jax.tree.map(lambda x: x[None], swap_time(samples))
        order = shuffled(key, samples.valid.shape, epochs=self.epochs, minibatches=self.minibatches)
        samples = in_groups(samples, order.shape[1])
        valid, advantage = jax.vmap(partial(take_items, (samples.valid, samples.advantage)))(order)
        batch = tuple(range(1, valid.ndim))
        if self.normalise_advantage:
            advantage = normalise(advantage, valid, batch)

        def minibatch(
            carry: tuple[Net, optax.OptState], inputs: tuple[jax.Array, jax.Array, jax.Array]
        ) -> tuple[tuple[Net, optax.OptState], dict[str, Mean]]:
            (net, opt), (items, advantage, steps) = carry, inputs
            sample = replace(take_items(samples, items), advantage=advantage)
            grads, metrics = self.gradient(net, sample, steps, remaining)
            return self.update(net, opt, all_mean(grads), remaining), metrics

        inputs = (order, advantage, count(valid, batch))
        (net, opt), metrics = lax.scan(minibatch, (net, opt), inputs)
        return net, opt, jax.tree.map(lambda x: x.sum(axis=0), metrics)

    def samples(self, net: Net, trajectory: Transition) -> Sample:
        """The trajectory with the old policy's log probabilities and values, and advantages (equation 11)."""
        # Acting needs no values: here they are two large products, in the rollout they would be many small ones.
        _, v_tm1, v_t = state_values(net, trajectory)
        advantage = gae(trajectory.reward, **trajectory.ends, v_tm1=v_tm1, v_t=v_t, gamma=self.gamma, lam=self.lam)
        return Sample(
            obs=trajectory.obs,
            action=trajectory.action,
            log_prob=trajectory.extra.log_prob(trajectory.action),
            value=v_tm1,
            advantage=advantage,
            target=v_tm1 + advantage,
            valid=trajectory.valid,
            past=trajectory.past,
        )

    @fragment
    def gradient(self, net: Net, sample: Sample, steps: jax.Array, remaining: jax.Array) -> tuple[Net, dict[str, Mean]]:
        """The gradient of the loss over one minibatch, which has `steps` valid steps over all replicas."""
        clip = self.clip * remaining if self.anneal_clip else self.clip
        valid = sample.valid

        def loss(net: Net) -> tuple[jax.Array, dict[str, Mean]]:
            inputs, _ = unroll(net, sample.obs, sample.past, time=1)
            policy, value = net.policy(inputs), net.value(inputs)
            log_ratio = policy.log_prob(sample.action) - sample.log_prob
            ratio = jnp.exp(log_ratio)  # equation 6
            if self.clip_value:
                value_loss = clipped_squared_error(value, sample.target, value_old=sample.value, clip=clip, valid=valid)
            else:
                value_loss = squared_error(value, sample.target, valid=valid)
            policy_loss = clipped_surrogate(ratio, advantage=sample.advantage, clip=clip, valid=valid)  # equation 7
            entropy = Mean.of(policy.entropy(), valid)
            # equation 9
            total = policy_loss.total + self.value_weight * value_loss.total - self.entropy_weight * entropy.total
            metrics = {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy}
            # The k3 estimator of the KL divergence: never negative, with a low variance (Schulman 2020).
            metrics["approx_kl"] = Mean.of(ratio - 1.0 - log_ratio, valid)
            metrics["clip_fraction"] = Mean.of(jnp.abs(ratio - 1.0) > clip, valid)
            return total / steps, metrics

        return jax.grad(loss, has_aux=True)(net)
