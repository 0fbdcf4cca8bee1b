"""What on-policy algorithms share: collect with the current policy, learn from it, throw it away.

A subclass gives `learn`, and may be read with only this in mind: it gets a trajectory with leaves [T, B, ...] that the
current `net` collected, and returns the next `net` and optimiser state, changed through `update` alone.
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import jax
import jax.numpy as jnp
import optax

from weft.algorithm import Algorithm, Play
from weft.envs.timestep import Env
from weft.errors import WeftError
from weft.fragments import fragment, replica
from weft.metrics import Mean
from weft.nets.actor_critic import Net
from weft.nets.build import build
from weft.nets.encoder import TorsoKind
from weft.nets.mlp import Activation
from weft.nets.recurrent import MemoryKind
from weft.ops.distributions import Distribution, draw_noise
from weft.ops.losses import average
from weft.ops.memory import forget, initial, see, unroll
from weft.ops.rollout import Place, Transition, rollout


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class State:
    """Everything that one iteration hands to the next."""

    net: Net
    opt: optax.OptState
    env: Any
    obs: Any
    memory: Any
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
    """Whether policy and value stand on one torso and memory; with images that spares a second network for them."""
    torso: TorsoKind = "auto"
    """What comes before the hidden layers: `auto` is what the observations ask for."""
    squash: bool = False
    """Whether actions are kept within their bounds by the policy; else the environment clips them."""
    memory: MemoryKind = "none"
    """What the network remembers with, if anything."""
    memory_size: int = 64
    """How many numbers it remembers."""
    net: Callable[..., Any] | None = None
    """A network to use instead: `net(observation_space, action_space, key=key)` with methods `policy` and `value`."""
    gamma: float = 0.99
    """Discount per step."""
    lr: float = 1e-3
    """Step size."""
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
        net = self.build(env, key_net)
        env_state, obs = env.reset(key_env)
        return State(
            net=net,
            opt=self._optimiser().init(cast(optax.Params, net)),
            env=env_state,
            obs=obs,
            memory=initial(net, env.num_envs),
            iteration=jnp.zeros((), jnp.int32),
            key=key,
        )

    def build(self, env: Env, key: jax.Array) -> Net:
        """The network that is trained."""
        spaces = env.observation_space, env.action_space
        if self.net is None:
            names = ("hidden", "activation", "shared", "torso", "squash", "memory", "memory_size")
            return build(*spaces, key=key, **{name: getattr(self, name) for name in names})
        if self.memory != "none":
            raise WeftError(f"memory={self.memory} is for weft's own network: one given as `net` brings its own")
        return self.net(*spaces, key=key)

    def step(self, env: Env, state: State) -> tuple[State, dict[str, Mean]]:
        key, key_act, key_env, key_learn = jax.random.split(state.key, 4)
        here, trajectory = rollout(
            env,
            lambda obs, memory, noise: self.act(state.net, obs, memory, noise),
            Place(state.env, state.obs, state.memory),
            noise=self.noise(env, key_act),
            key=key_env,
            length=self.horizon,
            unroll=self.unroll,
        )
        remaining = self.remaining(env, state.iteration)
        net, opt, metrics = self.learn(state.net, state.opt, trajectory, remaining, key_learn)
        env_state, episodes = env.episodes(here.env)
        state = State(net, opt, env_state, here.obs, here.memory, state.iteration + 1, key)
        return state, metrics | episodes

    @abstractmethod
    def learn(
        self, net: Net, opt: optax.OptState, trajectory: Transition, remaining: jax.Array, key: jax.Array
    ) -> tuple[Net, optax.OptState, dict[str, Mean]]:
        """The next net and optimiser state. A fragment."""

    @fragment(name="act.noise")
    def noise(self, env: Env, key: jax.Array) -> Any:
        """All the randomness of acting in one iteration."""
        return draw_noise(env.action_space, key, (self.horizon, env.num_envs))

    @fragment
    def act(self, net: Net, obs: Any, memory: Any, noise: Any) -> tuple[Any, Distribution, Any]:
        """Actions, the policy that they were drawn from, and the next memory."""
        memory, seen = see(net, memory, obs)
        policy = net.policy(seen)
        return policy.sample(noise), policy, memory

    def player(self, env: Env, net: Net, *, greedy: bool) -> tuple[Any, Play]:
        """How to play with a trained net: the memory to start from, and a function to act by."""

        def play(memory: Any, obs: Any, start: jax.Array, key: jax.Array) -> tuple[Any, Any]:
            memory, seen = see(net, forget(memory, start), obs)
            policy = net.policy(seen)
            return memory, policy.mode() if greedy else policy.sample(draw_noise(env.action_space, key, start.shape))

        return initial(net, env.num_envs), play

    @fragment
    def update(self, net: Net, opt: optax.OptState, grads: Net, remaining: jax.Array) -> tuple[Net, optax.OptState]:
        """One optimiser step."""
        updates, opt = self._optimiser().update(cast(optax.Updates, grads), opt)
        rate = self.lr * remaining
        return jax.tree.map(lambda p, u: p - rate * u, net, updates), opt

    def loss(self, *, policy: Mean, value: Mean, entropy: Mean) -> tuple[jax.Array, dict[str, Mean]]:
        """The weighted sum of the terms, and the terms as metrics."""
        total = average(policy) + self.value_weight * average(value) - self.entropy_weight * average(entropy)
        return total, {"policy_loss": policy, "value_loss": value, "entropy": entropy}

    def remaining(self, env: Env, iteration: jax.Array) -> jax.Array:
        """The share of the annealing that is still to come: from 1 down to 0."""
        if not self.anneal_steps:
            return jnp.ones((), jnp.float32)
        _, replicas = replica()
        shares = (iteration * replicas).astype(jnp.float32)
        return jnp.maximum(1.0 - shares * (env.num_envs * self.horizon / self.anneal_steps), 0.0)

    def _optimiser(self) -> optax.GradientTransformation:
        return optax.chain(optax.clip_by_global_norm(self.max_grad_norm), optax.scale_by_adam(eps=1e-5))


def values(net: Net, trajectory: Transition) -> tuple[Any, jax.Array, jax.Array]:
    """What is seen at every step, what that is worth, and what it is worth where the step led."""
    seen, memory = unroll(net, trajectory.obs, trajectory.past)
    _, seen_last = see(net, memory, trajectory.final_obs)
    return seen, net.value(seen), net.value(seen_last)
