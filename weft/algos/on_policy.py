"""What on-policy algorithms share: collect with the current policy, learn from it, throw it away.

A subclass gives `learn`, and may be read with only this in mind: it gets a trajectory with leaves [T, B, ...] that the
current `net` collected, and returns the next `net` and optimiser state, changed through `update` alone.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, cast

import jax
import jax.numpy as jnp
import optax

from weft.algorithm import Algorithm
from weft.envs.timestep import Env
from weft.fragment import all_mean, fragment
from weft.metrics import Mean
from weft.nets.actor_critic import ActorCritic
from weft.nets.mlp import Activation
from weft.ops.distributions import Distribution, draw_noise
from weft.ops.losses import actor_critic, average
from weft.ops.rollout import Transition, rollout


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class State:
    """Everything that one iteration hands to the next."""

    net: ActorCritic
    opt: optax.OptState
    env: Any
    obs: Any
    iteration: jax.Array
    key: jax.Array


@dataclass(frozen=True, kw_only=True)
class OnPolicy(Algorithm):
    """Settings and the loop around `learn`; abstract."""

    horizon: int = 128
    """Steps of every environment per iteration."""
    hidden: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers."""
    activation: Activation = "tanh"
    """What follows every hidden layer."""
    shared: bool = False
    """Whether policy and value stand on one torso."""
    gamma: float = 0.99
    """Discount per step."""
    lr: float = 1e-3
    """Adam's step size."""
    max_grad_norm: float = 0.5
    """Gradients longer than this are shortened to it."""
    entropy_weight: float = 0.01
    """How much the loss rewards an undecided policy."""
    value_weight: float = 0.5
    """How much the value's error counts in the loss."""
    normalise_advantage: bool = True
    """Whether advantages are scaled to zero mean and unit spread before they weigh actions."""
    anneal_steps: int = 0
    """Environment steps over which the step size falls to zero, in a line; 0 keeps it."""
    unroll: int = 1
    """Steps of the rollout compiled as one: more is faster on a GPU, and slower to compile."""

    def init(self, env: Env, key: jax.Array) -> State:
        key_net, key_env, key = jax.random.split(key, 3)
        net = ActorCritic(
            env.observation_space,
            env.action_space,
            hidden=self.hidden,
            activation=self.activation,
            shared=self.shared,
            key=key_net,
        )
        env_state, obs = env.reset(key_env)
        return State(
            net, self._optimiser().init(cast(optax.Params, net)), env_state, obs, jnp.zeros((), jnp.int32), key
        )

    def step(self, env: Env, state: State) -> tuple[State, dict[str, Mean]]:
        key, key_act, key_env, key_learn = jax.random.split(state.key, 4)
        env_state, obs, trajectory = rollout(
            env,
            lambda obs, noise: self.act(state.net, obs, noise),
            env_state=state.env,
            obs=state.obs,
            noise=self.noise(env, key_act),
            key=key_env,
            length=self.horizon,
            unroll=self.unroll,
        )
        net, opt, metrics = self.learn(state.net, state.opt, trajectory, self.remaining(state.iteration), key_learn)
        env_state, episodes = env.episodes(env_state)
        state = State(net, opt, env_state, obs, state.iteration + 1, key)
        return state, metrics | episodes

    @abstractmethod
    def learn(
        self, net: ActorCritic, opt: optax.OptState, trajectory: Transition, remaining: jax.Array, key: jax.Array
    ) -> tuple[ActorCritic, optax.OptState, dict[str, Mean]]:
        """The next net and optimiser state. A fragment."""

    @fragment(name="act.noise")
    def noise(self, env: Env, key: jax.Array) -> jax.Array:
        """All the randomness of acting in one iteration."""
        return draw_noise(env.action_space, key, (self.horizon, env.num_envs))

    @fragment
    def act(self, net: ActorCritic, obs: Any, noise: jax.Array) -> tuple[jax.Array, Distribution]:
        """Actions, and the policy that they were drawn from."""
        policy = net.policy(obs)
        return policy.sample(noise), policy

    @fragment
    def update(
        self, net: ActorCritic, opt: optax.OptState, grads: ActorCritic, remaining: jax.Array
    ) -> tuple[ActorCritic, optax.OptState]:
        """One optimiser step."""
        updates, opt = self._optimiser().update(cast(optax.Updates, grads), opt)
        rate = self.lr * remaining
        return jax.tree.map(lambda p, u: p - rate * u, net, updates), opt

    def loss(self, *, policy: Mean, value: Mean, entropy: Mean) -> tuple[jax.Array, dict[str, Mean]]:
        """The weighted sum of the terms, and the terms as metrics."""
        total = average(policy) + self.value_weight * average(value) - self.entropy_weight * average(entropy)
        return total, {"policy_loss": policy, "value_loss": value, "entropy": entropy}

    def remaining(self, iteration: jax.Array) -> jax.Array:
        """The share of the annealing that is still to come: from 1 down to 0."""
        if not self.anneal_steps:
            return jnp.ones((), jnp.float32)
        done = iteration.astype(jnp.float32) * (self.num_envs * self.horizon / self.anneal_steps)
        return jnp.maximum(1.0 - done, 0.0)

    def _optimiser(self) -> optax.GradientTransformation:
        return optax.chain(optax.clip_by_global_norm(self.max_grad_norm), optax.scale_by_adam(eps=1e-5))


@dataclass(frozen=True, kw_only=True)
class PolicyGradient(OnPolicy):
    """One gradient step per rollout, towards targets that a subclass gives; abstract."""

    @fragment
    def learn(
        self, net: ActorCritic, opt: optax.OptState, trajectory: Transition, remaining: jax.Array, key: jax.Array
    ) -> tuple[ActorCritic, optax.OptState, dict[str, Mean]]:
        del key
        grads, metrics = self.gradient(net, trajectory, *self.targets(net, trajectory))
        net, opt = self.update(net, opt, all_mean(grads), remaining)
        return net, opt, metrics

    @abstractmethod
    def targets(self, net: ActorCritic, trajectory: Transition) -> tuple[jax.Array, jax.Array]:
        """What every step's return should be, [T, B], and which steps to learn from."""

    @fragment
    def gradient(
        self, net: ActorCritic, trajectory: Transition, target: jax.Array, valid: jax.Array
    ) -> tuple[ActorCritic, dict[str, Mean]]:
        """The gradient of the loss over the `valid` steps."""

        def loss(net: ActorCritic) -> tuple[jax.Array, dict[str, Mean]]:
            rows = {"target": target, "valid": valid, "normalised": self.normalise_advantage}
            return self.loss(**actor_critic(net, trajectory.obs, trajectory.action, **rows))

        return jax.grad(loss, has_aux=True)(net)
