"""The base of on-policy algorithms: collect a trajectory with the current policy, learn from it, discard it.

An algorithm defines `learn`: from a trajectory, leaves [T, B, ...], to the next network and optimiser state, which only
`update` changes.
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
from weft.ops.memory import forget, initial_memory, step_memory
from weft.ops.rollout import RolloutState, Transition, rollout


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class State:
    """What one iteration passes to the next."""

    net: Net
    opt: optax.OptState
    env: Any
    obs: Any
    memory: Any
    iteration: jax.Array
    key: jax.Array


@dataclass(frozen=True, kw_only=True)
class OnPolicy(Algorithm):
    """Settings, and the loop around `learn`; abstract."""

    horizon: int = 128  # steps of every environment per iteration
    hidden: tuple[int, ...] = (64, 64)  # widths of the hidden layers
    activation: Activation = "tanh"  # of the hidden layers
    shared: bool = False  # whether policy and value share a torso and a memory, which saves a second image encoder
    torso: TorsoKind = "auto"  # the encoder before the hidden layers; auto depends on the observation space
    squash: bool = False  # whether the policy bounds actions by tanh; else the environment clips them
    memory: MemoryKind = "none"  # the recurrent cell of the network, if any
    memory_size: int = 64  # units of the recurrent cell
    net: Callable[..., Any] | None = None
    """Your own network: `net(observation_space, action_space, key=key)`, with methods `policy` and `value`."""
    gamma: float = 0.99  # discount factor
    lr: float = 1e-3  # step size
    max_grad_norm: float = 0.5  # gradients are clipped to this global norm
    entropy_weight: float = 0.01  # weight of the entropy bonus in the loss
    value_weight: float = 0.5  # weight of the value function's error in the loss
    normalise_advantage: bool = True  # whether advantages are normalised to zero mean and unit standard deviation
    anneal_steps: int = 0  # environment steps over which the step size decays linearly to 0; 0 keeps it constant
    unroll: int = 1  # rollout steps compiled as one loop iteration: more is faster on a GPU and compiles slower

    @abstractmethod
    def learn(
        self, net: Net, opt: optax.OptState, trajectory: Transition, remaining: jax.Array, key: jax.Array
    ) -> tuple[Net, optax.OptState, dict[str, Mean]]:
        """The next network and optimiser state, and metrics. A fragment."""

    def init(self, env: Env, key: jax.Array) -> State:
        key_net, key_env, key = jax.random.split(key, 3)
        net = self.build(env, key_net)
        env_state, obs = env.reset(key_env)
        return State(
            net=net,
            opt=self.make_optimiser().init(cast(optax.Params, net)),
            env=env_state,
            obs=obs,
            memory=initial_memory(net, env.num_envs),
            iteration=jnp.zeros((), jnp.int32),
            key=key,
        )

    def build(self, env: Env, key: jax.Array) -> Net:
        """The network: a policy and a value function."""
        spaces = env.observation_space, env.action_space
        if self.net is None:
            names = ("hidden", "activation", "shared", "torso", "squash", "memory", "memory_size")
            return build(*spaces, key=key, **{name: getattr(self, name) for name in names})
        if self.memory != "none":
            raise WeftError(f"memory={self.memory} is for weft's own network: one given as `net` brings its own")
        return self.net(*spaces, key=key)

    def step(self, env: Env, state: State) -> tuple[State, dict[str, Mean]]:
        key, key_act, key_env, key_learn = jax.random.split(state.key, 4)
        end, trajectory = rollout(
            env,
            lambda obs, memory, noise: self.act(state.net, obs, memory, noise),
            RolloutState(state.env, state.obs, state.memory),
            noise=self.acting_noise(env, key_act),
            key=key_env,
            length=self.horizon,
            unroll=self.unroll,
        )
        remaining = self.remaining(env, state.iteration)
        net, opt, metrics = self.learn(state.net, state.opt, trajectory, remaining, key_learn)
        env_state, episodes = env.episodes(end.env)
        state = State(net, opt, env_state, end.obs, end.memory, state.iteration + 1, key)
        return state, metrics | episodes

    @fragment(name="act.noise")
    def acting_noise(self, env: Env, key: jax.Array) -> Any:
        """The noise of `act` for one iteration, leaves [horizon, B, ...]."""
        return draw_noise(env.action_space, key, (self.horizon, env.num_envs))

    @fragment
    def act(self, net: Net, obs: Any, memory: Any, noise: Any) -> tuple[Any, Distribution, Any]:
        """Actions, the distribution that they were sampled from, and the next memory."""
        memory, inputs = step_memory(net, memory, obs)
        policy = net.policy(inputs)
        return policy.sample(noise), policy, memory

    def player(self, env: Env, net: Net, *, greedy: bool) -> tuple[Any, Play]:
        def play(memory: Any, obs: Any, start: jax.Array, key: jax.Array) -> tuple[Any, Any]:
            memory, inputs = step_memory(net, forget(memory, start), obs)
            policy = net.policy(inputs)
            return memory, policy.mode() if greedy else policy.sample(draw_noise(env.action_space, key, start.shape))

        return initial_memory(net, env.num_envs), play

    @fragment
    def update(self, net: Net, opt: optax.OptState, grads: Net, remaining: jax.Array) -> tuple[Net, optax.OptState]:
        """One optimiser step."""
        updates, opt = self.make_optimiser().update(cast(optax.Updates, grads), opt)
        rate = self.lr * remaining
        return jax.tree.map(lambda p, u: p - rate * u, net, updates), opt

    def remaining(self, env: Env, iteration: jax.Array) -> jax.Array:
        """The fraction of the step size that is left: falls from 1 to 0 over `anneal_steps`."""
        if not self.anneal_steps:
            return jnp.ones((), jnp.float32)
        _, replicas = replica()
        iterations = (iteration * replicas).astype(jnp.float32)
        return jnp.maximum(1.0 - iterations * (env.num_envs * self.horizon / self.anneal_steps), 0.0)

    def make_optimiser(self) -> optax.GradientTransformation:
        """Gradients to parameter changes, without the step size."""
        return optax.chain(optax.clip_by_global_norm(self.max_grad_norm), optax.scale_by_adam(eps=1e-5))
