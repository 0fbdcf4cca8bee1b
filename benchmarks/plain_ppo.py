"""PPO on gymnax, written by hand as one jitted function: the baseline for weft's fused layout.

This module does not import weft. It computes the same operations as `weft.algos.ppo` with default settings, in the same
order, so both must lower to the same program; `tests/algos/test_ppo.py` compares them.
"""

import argparse
import math
import time
from typing import Any, NamedTuple

import gymnax
import jax
import jax.numpy as jnp
import optax
from jax import lax

ENV = "CartPole-v1"
NUM_ENVS, HORIZON, EPOCHS, MINIBATCHES = 16, 128, 4, 4
HIDDEN = (64, 64)
LR, GAMMA, LAM, CLIP = 2e-3, 0.99, 0.95, 0.2
VALUE_WEIGHT, ENTROPY_WEIGHT, MAX_GRAD_NORM = 0.5, 0.01, 0.5

Layer = tuple[jax.Array, jax.Array]


class Net(NamedTuple):
    actor: list[Layer]
    critic: list[Layer]
    logits: Layer
    value: Layer


class Episodes(NamedTuple):
    running_return: jax.Array
    running_length: jax.Array
    return_total: jax.Array
    length_total: jax.Array
    finished: jax.Array


class State(NamedTuple):
    net: Net
    opt: optax.OptState
    env: tuple[Any, Episodes]
    obs: jax.Array
    iteration: jax.Array
    key: jax.Array


class Transition(NamedTuple):
    obs: jax.Array
    action: jax.Array
    logits: jax.Array
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    final_obs: jax.Array
    valid: jax.Array


class Sample(NamedTuple):
    obs: jax.Array
    action: jax.Array
    log_prob: jax.Array
    value: jax.Array
    advantage: jax.Array
    target: jax.Array
    valid: jax.Array


def make_ppo(num_envs=NUM_ENVS, horizon=HORIZON, epochs=EPOCHS, minibatches=MINIBATCHES, unroll=1):
    """Returns `init(key) -> state` and `step(state) -> (state, metrics)`."""
    env, params = gymnax.make(ENV)
    obs_size = math.prod(env.observation_space(params).shape)
    num_actions = env.action_space(params).n
    optimiser = optax.chain(optax.clip_by_global_norm(MAX_GRAD_NORM), optax.scale_by_adam(eps=1e-5))

    def init(key):
        key_net, key_env, key = jax.random.split(key, 3)
        net = init_net(key_net, obs_size, num_actions)
        obs, env_state = jax.vmap(env.reset, in_axes=(0, None))(jax.random.split(key_env, num_envs), params)
        episodes = Episodes(*(jnp.zeros(num_envs, jnp.float32) for _ in range(5)))
        env_state = (strong(env_state), episodes)
        return State(net, optimiser.init(net), env_state, obs, jnp.zeros((), jnp.int32), key)

    def env_step(env_state, action, key):
        inner, episodes = env_state
        keys = jax.random.split(key, num_envs)
        obs, inner, reward, terminated, truncated, info = jax.vmap(env.step, in_axes=(0, 0, 0, None))(
            keys, inner, action, params
        )
        reward = reward.astype(jnp.float32)
        truncated = (truncated & ~terminated).astype(bool)
        final_obs, valid = info["final_observation"], jnp.ones(num_envs, bool)
        episodes = record(episodes, reward, terminated | truncated, valid)
        return (strong(inner), episodes), obs, (reward, terminated, truncated, final_obs, valid)

    def step(state):
        key, key_act, key_env, key_learn = jax.random.split(state.key, 4)
        noise = jax.random.gumbel(key_act, (horizon, num_envs, num_actions), jnp.float32)

        def tick(carry, inputs):
            env_state, obs = carry
            noise_t, key_t = inputs
            logits = policy(state.net, obs)
            action = jnp.argmax(logits + noise_t, axis=-1).astype(jnp.int32)
            env_state, next_obs, outcome = env_step(env_state, action, key_t)
            return (env_state, next_obs), Transition(obs, action, logits, *outcome)

        keys = jax.random.split(key_env, horizon)
        (env_state, obs), trajectory = lax.scan(tick, (state.env, state.obs), (noise, keys), unroll=unroll)
        net, opt, metrics = learn(state.net, state.opt, trajectory, jnp.ones((), jnp.float32), key_learn)
        inner, episodes = env_state
        count = episodes.finished.sum()
        metrics["episode_return"] = (episodes.return_total.sum(), count)
        metrics["episode_length"] = (episodes.length_total.sum(), count)
        zeros = jnp.zeros_like(episodes.finished)
        episodes = episodes._replace(return_total=zeros, length_total=zeros, finished=zeros)
        return State(net, opt, (inner, episodes), obs, state.iteration + 1, key), metrics

    def learn(net, opt, trajectory, remaining, key):
        v_tm1, v_t = value(net, trajectory.obs), value(net, trajectory.final_obs)
        advantage = gae(trajectory, v_tm1, v_t)
        old = log_prob(trajectory.logits, trajectory.action)
        sample = Sample(trajectory.obs, trajectory.action, old, v_tm1, advantage, v_tm1 + advantage, trajectory.valid)
        # Each epoch is a permutation of the steps of every group of environments.
        group = minibatches // math.gcd(horizon, minibatches)
        groups, items = num_envs // group, group * horizon
        orders = jnp.argsort(jax.random.bits(key, (epochs, groups, items)), axis=-1)
        orders = jnp.swapaxes(orders.reshape(epochs, groups, minibatches, items // minibatches), 1, 2)
        orders = orders.reshape(epochs * minibatches, groups, items // minibatches)
        sample = jax.tree.map(lambda x: in_groups(x, groups), sample)
        valid, advantage = jax.vmap(lambda order: take_items((sample.valid, sample.advantage), order))(orders)
        advantage = normalise(advantage, valid)
        steps = jnp.maximum(jnp.sum(valid, 1, jnp.float32), 1.0)

        def minibatch(carry, inputs):
            (net, opt), (order, advantage, steps) = carry, inputs
            grads, metrics = gradient(net, take_items(sample, order)._replace(advantage=advantage), steps)
            updates, opt = optimiser.update(grads, opt)
            rate = LR * remaining
            return (jax.tree.map(lambda p, u: p - rate * u, net, updates), opt), metrics

        (net, opt), metrics = lax.scan(minibatch, (net, opt), (orders, advantage, steps))
        return net, opt, jax.tree.map(lambda x: x.sum(axis=0), metrics)

    return init, step


def in_groups(x, groups):
    by_group = jnp.swapaxes(x.reshape(x.shape[0], groups, -1, *x.shape[2:]), 0, 1)
    return by_group.reshape(groups, -1, *x.shape[2:])


def take_items(tree, order):
    return jax.tree.map(lambda x: jax.vmap(lambda x, i: x[i])(x, order).reshape(-1, *x.shape[2:]), tree)


def gradient(net, sample, steps):
    valid, advantage = sample.valid, sample.advantage

    def loss(net):
        logits, v = policy(net, sample.obs), value(net, sample.obs)
        log_ratio = log_prob(logits, sample.action) - sample.log_prob
        ratio = jnp.exp(log_ratio)
        value_loss = masked(0.5 * jnp.square(v - sample.target), valid)
        clipped = jnp.clip(ratio, 1.0 - CLIP, 1.0 + CLIP)
        policy_loss = masked(-jnp.minimum(ratio * advantage, clipped * advantage), valid)
        entropy = masked(entropy_of(logits), valid)
        total = policy_loss[0] + VALUE_WEIGHT * value_loss[0] - ENTROPY_WEIGHT * entropy[0]
        metrics = {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy}
        metrics["approx_kl"] = masked(ratio - 1.0 - log_ratio, valid)
        metrics["clip_fraction"] = masked(jnp.abs(ratio - 1.0) > CLIP, valid)
        return total / steps, metrics

    return jax.grad(loss, has_aux=True)(net)


def gae(trajectory, v_tm1, v_t):
    valid = trajectory.valid
    truncated = trajectory.truncated | jnp.concatenate([~valid[1:], jnp.zeros_like(valid[:1])])
    delta_t = trajectory.reward + GAMMA * jnp.where(trajectory.terminated, 0.0, v_t) - v_tm1
    decay_t = jnp.where(trajectory.terminated | truncated, 0.0, GAMMA * LAM)

    def previous(advantage_t, inputs):
        delta, decay = inputs
        advantage_tm1 = delta + decay * advantage_t
        return advantage_tm1, advantage_tm1

    return lax.scan(previous, jnp.zeros_like(v_t[-1]), (delta_t, decay_t), reverse=True, unroll=16)[1]


def init_net(key, obs_size, num_actions):
    key_actor, key_critic, key_logits, key_value = jax.random.split(key, 4)
    actor, critic = init_torso(key_actor, obs_size), init_torso(key_critic, obs_size)
    return Net(
        actor,
        critic,
        init_layer(key_logits, HIDDEN[-1], num_actions, scale=0.01),
        init_layer(key_value, HIDDEN[-1], 1, scale=1.0),
    )


def init_torso(key, obs_size):
    keys = jax.random.split(key, len(HIDDEN))
    sizes = zip((obs_size, *HIDDEN), HIDDEN, keys, strict=False)
    return [init_layer(key, inputs, outputs, scale=math.sqrt(2)) for inputs, outputs, key in sizes]


def init_layer(key, inputs, outputs, scale):
    weight = jax.nn.initializers.orthogonal(scale)(key, (inputs, outputs), jnp.float32)
    return weight, jnp.zeros(outputs, jnp.float32)


def torso(layers, x):
    for weight, bias in layers:
        x = jnp.tanh(x @ weight + bias)
    return x


def policy(net, obs):
    return torso(net.actor, obs) @ net.logits[0] + net.logits[1]


def value(net, obs):
    return (torso(net.critic, obs) @ net.value[0] + net.value[1])[..., 0]


def log_prob(logits, action):
    log_probs = jax.nn.log_softmax(logits)
    return jnp.sum(log_probs * jax.nn.one_hot(action, logits.shape[-1], dtype=log_probs.dtype), axis=-1)


def entropy_of(logits):
    log_probs = jax.nn.log_softmax(logits)
    return -jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1)


def record(episodes, reward, ended, valid):
    episode_return = episodes.running_return + jnp.where(valid, reward, 0.0)
    episode_length = episodes.running_length + valid.astype(jnp.float32)
    ended = ended & valid
    return Episodes(
        running_return=jnp.where(ended, 0.0, episode_return),
        running_length=jnp.where(ended, 0.0, episode_length),
        return_total=episodes.return_total + jnp.where(ended, episode_return, 0.0),
        length_total=episodes.length_total + jnp.where(ended, episode_length, 0.0),
        finished=episodes.finished + ended.astype(jnp.float32),
    )


def masked(x, valid):
    x, mask = x.astype(jnp.float32), valid.astype(jnp.float32)
    return jnp.sum(x * mask), jnp.sum(mask)


def normalise(x, valid):
    mask = valid.astype(x.dtype)
    total, number = jnp.sum(x * mask, 1, keepdims=True), jnp.sum(mask, 1, keepdims=True)
    number = jnp.maximum(number, 1.0)
    centred = x - total / number
    variance = jnp.sum(jnp.square(centred) * mask, 1, keepdims=True) / number
    return centred / (jnp.sqrt(variance) + 1e-8)


def strong(tree):
    return jax.tree.map(lambda x: x.astype(x.dtype), tree)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=500_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    init, step = make_ppo()
    iterations = -(-args.steps // (NUM_ENVS * HORIZON))
    train = jax.jit(lambda state: lax.scan(lambda state, _: step(state), state, length=iterations))
    start = time.perf_counter()
    _, metrics = jax.block_until_ready(train(init(jax.random.key(args.seed))))
    total, count = (x[-10:].sum() for x in metrics["episode_return"])
    print(
        f"return {total / count:.1f} after {iterations * NUM_ENVS * HORIZON} steps, {time.perf_counter() - start:.1f} s"
    )


if __name__ == "__main__":
    main()
