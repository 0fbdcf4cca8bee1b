"""Behaviour cloning (Pomerleau 1989): do what was done.

A policy that makes the recorded actions likely, wherever the recorded observations are. It needs no rewards, and never
does better than what it is shown; where it gets to a place that was not shown, it is lost.
"""

from dataclasses import dataclass
from typing import Any

import jax

from weft.algorithm import Play
from weft.algos.learning import Learner, Loss
from weft.algos.offline import Offline
from weft.envs.timestep import Env
from weft.metrics import Mean
from weft.nets.policy import Policy
from weft.ops.distributions import draw_noise
from weft.ops.losses import average
from weft.ops.rollout import Transition


@dataclass(frozen=True, kw_only=True)
class BC(Offline):
    """Behaviour cloning: the recorded actions become likely."""

    def build(self, env: Env, key: jax.Array) -> Policy:
        settings = {name: getattr(self, name) for name in ("hidden", "activation", "torso")}
        return Policy(env.observation_space, env.action_space, key=key, **settings)

    def loss(self, net: Policy, learner: Learner, items: Transition, weight: jax.Array, key: jax.Array) -> Loss:
        del learner, weight, key
        obs, action, valid = jax.tree.map(lambda x: x[0], (items.obs, items.action, items.valid))
        policy = net(obs)
        surprise = -policy.log_prob(action)
        loss = Mean.of(surprise, valid)
        return average(loss), (surprise, {"loss": loss, "entropy": Mean.of(policy.entropy(), valid)})

    def player(self, env: Env, net: Policy, *, greedy: bool) -> tuple[Any, Play]:
        def play(memory: Any, obs: Any, start: jax.Array, key: jax.Array) -> tuple[Any, Any]:
            policy = net(obs)
            return memory, policy.mode() if greedy else policy.sample(draw_noise(env.action_space, key, start.shape))

        return (), play
