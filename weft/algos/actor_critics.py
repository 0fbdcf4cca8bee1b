"""What DDPG, TD3, D4PG, SAC and CQL share: critics learn what actions are worth, and a policy goes where they say.

A subclass gives `build` (`ActorCriticNets`), `act`, and two views of its policy: `after` is what critics think of what
follows a step, `policy_loss` what the policy loses by not doing better. Both losses have one gradient, in which each
part of the network gets only its own. Where the steps come from is for the other class that it extends to say:
`OffPolicy` or `Offline`.
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import jax
import jax.numpy as jnp
import optax

from weft.algorithm import Play
from weft.algos.learning import Learner, Learning, Loss
from weft.envs.timestep import Env
from weft.fragments import fragment
from weft.metrics import Mean
from weft.nets.continuous import ActorCriticNets, Ensemble
from weft.ops.distributions import draw_noise
from weft.ops.losses import average
from weft.ops.n_step import NStep, at_step, n_step
from weft.ops.rollout import Transition


@dataclass(frozen=True, kw_only=True)
class ActorCritics(Learning):
    """Settings, and the loss of critics and policy; abstract."""

    batch_size: int = 256
    hidden: tuple[int, ...] = (256, 256)
    lr: float = 3e-4
    actor_lr: float = 3e-4
    """Step size of the policy; `lr` is that of everything else."""
    max_grad_norm: float = 1e9
    target_mix: float = 0.005
    critics: int = 1
    """How many there are: targets are by the one that expects least."""
    policy_period: int = 1
    """Gradient steps from one of the policy to the next."""

    def controller(
        self, env: Env, key: jax.Array, actor: Callable[..., Any], critic: Callable[..., Any]
    ) -> ActorCriticNets:
        """An actor and critics of these kinds, as the settings describe them."""
        key_actor, key_critics = jax.random.split(key)
        spaces = env.observation_space, env.action_space
        settings = {name: getattr(self, name) for name in ("hidden", "activation", "torso")}
        critics = Ensemble(lambda key: critic(*spaces, key=key, **settings), self.critics, key=key_critics)
        return ActorCriticNets(actor(*spaces, key=key_actor, **settings), critics)

    @abstractmethod
    def act(self, net: ActorCriticNets, obs: Any, memory: Any, noise: Any) -> tuple[Any, Any, Any]:
        """Actions, what to keep with them, and the next memory. A fragment."""

    def player(self, env: Env, net: ActorCriticNets, *, greedy: bool) -> tuple[Any, Play]:
        def play(memory: Any, obs: Any, start: jax.Array, key: jax.Array) -> tuple[Any, Any]:
            noise = draw_noise(env.action_space, key, start.shape)
            return memory, self.act(net, obs, memory, jnp.zeros_like(noise) if greedy else noise)[0]

        return (), play

    @abstractmethod
    def after(self, net: ActorCriticNets, target: ActorCriticNets, obs: Any, key: jax.Array) -> jax.Array:
        """What target critics think of `obs`, one of them each time, [B, atoms]."""

    @abstractmethod
    def policy_loss(
        self, net: ActorCriticNets, fixed: ActorCriticNets, obs: Any, key: jax.Array
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """The policy's loss where `obs` is, [B], and what to report. `fixed` is `net`, without gradients."""

    def worth(self, net: ActorCriticNets, obs: Any, action: Any) -> jax.Array:
        """What critics think of actions, [critics, B, atoms]."""
        return net.critics(obs, action)

    def mean(self, out: jax.Array) -> jax.Array:
        """The return that critics expect, [..., atoms] to [...]."""
        return out[..., 0]

    def compare(self, out: jax.Array, after: jax.Array, ahead: NStep) -> tuple[jax.Array, jax.Array]:
        """The loss of every critic for every item, and how far off it is, [critics, B] each."""
        error = ahead.reward + ahead.discount * self.mean(after) - self.mean(out)
        return 0.5 * jnp.square(error), jnp.abs(error)

    def least(self, out: jax.Array) -> jax.Array:
        """What the critic thinks that expects least, [critics, B, ...] to [B, ...]."""
        lowest = jnp.argmin(self.mean(out), axis=0)
        return jnp.take_along_axis(out, lowest[None, ..., None], axis=0)[0]

    @fragment(name="act.errors")
    def errors(self, net: ActorCriticNets, target: ActorCriticNets, trajectory: Transition) -> jax.Array:
        """The error of every step by itself."""
        one_step = jax.tree.map(lambda x: x.reshape(1, -1, *x.shape[2:]), trajectory)
        # It is a first guess that is soon replaced: one draw of whatever noise there is serves for all of them.
        _, error, _ = self._critics_loss(net, net, target, one_step, jax.random.key(0))
        return error.reshape(trajectory.reward.shape)

    def loss(
        self, net: ActorCriticNets, learner: Learner, items: Transition, weight: jax.Array, key: jax.Array
    ) -> Loss:
        key_after, key_policy = jax.random.split(key)
        obs, valid = jax.tree.map(lambda x: x[0], (items.obs, items.valid))
        loss, error, value = self._critics_loss(net, learner.net, learner.target, items, key_after)
        policy_loss, seen = self.policy_loss(net, learner.net, obs, key_policy)
        reported = {"loss": loss, "value": value, **seen}
        total = average(Mean.of(weight * loss + policy_loss, valid))
        return total, (error, {name: Mean.of(rows, valid) for name, rows in reported.items()})

    def _critics_loss(
        self, net: ActorCriticNets, fixed: ActorCriticNets, target: ActorCriticNets, items: Transition, key: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """The loss of all critics for every item, how far off they are, and what they think that it is worth."""
        ends = {"terminated": items.terminated, "truncated": items.truncated, "valid": items.valid}
        ahead = n_step(items.reward, **ends, gamma=self.gamma)
        obs, action = jax.tree.map(lambda x: x[0], (items.obs, items.action))
        after = self.after(fixed, target, at_step(items.final_obs, ahead.last), key)
        out = self.worth(net, obs, action)
        loss, error = self.compare(out, after, ahead)
        return jnp.sum(loss, axis=0), jnp.mean(error, axis=0), jnp.mean(self.mean(out), axis=0)

    def _optimiser(self) -> optax.GradientTransformation:
        """One for the policy, in its own time, and one for the rest."""
        actor, rest = (
            optax.chain(optax.clip_by_global_norm(self.max_grad_norm), optax.adam(rate))
            for rate in (self.actor_lr, self.lr)
        )
        actor = optax.conditionally_mask(actor, lambda step, **_: (cast(Any, step) + 1) % self.policy_period == 0)
        return optax.partition({"actor": actor, "rest": rest}, _labels)


def _labels(net: ActorCriticNets) -> Any:
    """Which optimiser each array belongs to."""
    labels = jax.tree.map(lambda _: "rest", net)
    return replace(labels, actor=jax.tree.map(lambda _: "actor", net.actor))
