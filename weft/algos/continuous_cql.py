"""Conservative Q-learning (Kumar et al. 2020) for actions that are numbers: CQL(H) on soft actor-critic.

It is CQL for another kind of action: what all actions are worth is pressed down, softly the best most, and what was
done is lifted. Here that is an integral, log int exp Q(s, a) da - Q(s, a). Actions are drawn for it from all that there
are, and from the policy both where the step began and where it led: so they are where an overrated one would be.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from weft.algos.learning import Learner, Loss
from weft.algos.offline import Offline
from weft.algos.sac import SoftActorCritics
from weft.metrics import Mean
from weft.nets.continuous import ActorCriticNets
from weft.ops.conservative import conservative_drawn
from weft.ops.losses import average
from weft.ops.rollout import Transition


@dataclass(frozen=True, kw_only=True)
class ContinuousCQL(SoftActorCritics, Offline):
    """Conservative Q-learning from a dataset, for actions that are numbers."""

    alpha: float = 5.0
    """How much what was not done is pressed down."""
    draws: int = 10
    """Actions that are drawn for that, of each of three kinds."""

    def __post_init__(self) -> None:
        SoftActorCritics.__post_init__(self)
        Offline.__post_init__(self)

    def loss(
        self, net: ActorCriticNets, learner: Learner, items: Transition, weight: jax.Array, key: jax.Array
    ) -> Loss:
        key, key_draw = jax.random.split(key)
        total, (errors, metrics) = super().loss(net, learner, items, weight, key)
        gap = Mean.of(self.gap(net, learner.net, items, key_draw), items.valid[0])
        return total + self.alpha * average(gap), (errors, metrics | {"conservative_loss": gap})

    def after(self, net: ActorCriticNets, target: ActorCriticNets, obs: Any, key: jax.Array) -> jax.Array:
        # Not paid for entropy: what was recorded may have next to none, and then the temperature rises and all values
        # fall, without end.
        return self.prospects(net, target, obs, key)[0][..., None]

    def gap(self, net: ActorCriticNets, fixed: ActorCriticNets, items: Transition, key: jax.Array) -> jax.Array:
        """How much more the softly best action is worth than what was done, [B]: over all critics."""
        obs, done = jax.tree.map(lambda x: x[0], (items.obs, items.action))
        action, log_density = self.drawn(fixed, items, key)
        q = jax.vmap(lambda action: self.mean(net.critics(obs, action)))(action)
        return jnp.sum(conservative_drawn(q, log_density[:, None], self.mean(net.critics(obs, done))), axis=0)

    def drawn(self, net: ActorCriticNets, items: Transition, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Actions, [3 draws, B, ...], and the logarithms of their densities, [3 draws, B]."""
        key_any, key_now, key_next = jax.random.split(key, 3)
        now, after = (net.actor(jax.tree.map(lambda x: x[0], obs)) for obs in (items.obs, items.final_obs))
        bounds, shape = net.actor.bounds, (self.draws, *now.mean.shape)
        anything = bounds.from_unit(jax.random.uniform(key_any, shape, minval=-1.0))
        drawn = (
            (anything, jnp.full(shape[:2], -bounds.log_volume)),
            now.sample_and_log_prob(jax.random.normal(key_now, shape)),
            after.sample_and_log_prob(jax.random.normal(key_next, shape)),
        )
        return jax.tree.map(lambda *parts: jnp.concatenate(parts), *drawn)
