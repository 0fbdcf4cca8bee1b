import dataclasses
from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax

import weft
from weft.algos.dqn import DQN
from weft.envs import make
from weft.envs.timestep import TimeStep
from weft.errors import WeftError
from weft.metrics import Mean
from weft.ops.rollout import Transition
from weft.runtime.driver import train_in_memory

SMALL: dict[str, Any] = {"num_envs": 4, "hidden": (8,), "batch_size": 8, "updates": 2, "capacity": 400}
SMALL |= {"warm_up_steps": 40, "target_period": 3}
RAINBOW: dict[str, Any] = {"dueling": True, "n_step": 3, "prioritised": True, "distributional": True, "v_max": 20.0}


def items_for(env, algo, key, length=3, n=50):
    """Random items of several steps, which cross ends of episodes."""
    keys = jax.random.split(key, 5)
    u = jax.random.uniform(keys[0], (length, n))
    obs, final = (jax.random.normal(k, (length, n, *env.observation_space.shape)) for k in keys[1:3])
    return Transition(
        obs=obs,
        action=jax.random.randint(keys[3], (length, n), 0, env.action_space.n),
        extra=(),
        reward=jax.random.normal(keys[4], (length, n)),
        terminated=u < 0.2,
        truncated=u > 0.8,
        final_obs=final,
        valid=jnp.ones((length, n), bool),
    )


@pytest.mark.parametrize("double", [True, False])
def test_one_step_errors_equal_rlax(key, double):
    env = make("gymnax:CartPole-v1", 4)
    algo = DQN(**SMALL, double=double)
    net, target = algo.build(env, key), algo.build(env, jax.random.key(9))
    items = items_for(env, algo, key, length=1)
    loss, error, value = algo.td_loss(net, net, target, items)
    now, after, best = net(items.obs[0])[..., 0], target(items.final_obs[0])[..., 0], net(items.final_obs[0])[..., 0]
    discount = jnp.where(items.terminated[0], 0.0, algo.gamma)
    chooser = best if double else after
    expected = jax.vmap(rlax.double_q_learning)(now, items.action[0], items.reward[0], discount, after, chooser)
    np.testing.assert_allclose(error, jnp.abs(expected), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(loss, rlax.huber_loss(expected, 1.0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(value, now[jnp.arange(50), items.action[0]], rtol=1e-5)


def test_the_target_network_gets_no_gradient(key):
    env = make("gymnax:CartPole-v1", 4)
    for settings in ({}, RAINBOW):
        algo = DQN(**SMALL | settings)
        net = algo.build(env, key)
        items = items_for(env, algo, key)

        def loss(net, target, algo=algo, items=items):
            return jnp.mean(algo.td_loss(net, net, target, items)[0])

        to_net, to_target = jax.grad(loss, (0, 1))(net, net)
        assert all(jnp.abs(leaf).max() == 0 for leaf in jax.tree.leaves(to_target))
        assert any(jnp.abs(leaf).max() > 0 for leaf in jax.tree.leaves(to_net))


def test_invalid_rows_do_not_change_the_gradient(key):
    env = make("gymnax:CartPole-v1", 4)
    algo = DQN(**SMALL)
    learner = algo.new_learner(env, key)
    items = items_for(env, algo, key, length=1)
    half = jnp.arange(50) < 25
    masked = dataclasses.replace(items, valid=half[None])
    cut = jax.tree.map(lambda x: x[:, :25], items)
    grads, others = (algo.gradient(learner, each, jnp.ones(each.reward.shape[1]), key)[0] for each in (masked, cut))
    for one, other in zip(jax.tree.leaves(grads), jax.tree.leaves(others), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_the_target_network_is_copied_every_target_period(key):
    env = make("gymnax:CartPole-v1", 4)
    algo = DQN(**SMALL)
    learner = algo.new_learner(env, key)
    grads = jax.tree.map(jnp.ones_like, learner.net)
    for count in range(1, 8):
        before = learner
        learner = algo.update(learner, grads)
        expected = learner.net if count % 3 == 0 else before.target
        assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), learner.target, expected))


def test_the_exploration_rate_is_that_of_the_settings(key):
    env = make("gymnax:CartPole-v1", 4)
    algo = DQN(**SMALL, horizon=5_000, epsilon=0.1, epsilon_steps=10 * 4 * 5_000, epsilon_spread=2.0)
    for iteration, expected in ((0, [1.0] * 4), (5, [0.5] * 4), (100, [0.1, 0.1 ** (5 / 3), 0.1 ** (7 / 3), 0.001])):
        noise = algo.acting_noise(env, jnp.arange(4), jnp.int32(iteration), key)
        np.testing.assert_allclose(noise.explores.mean(axis=0), expected, atol=0.03)


@pytest.mark.parametrize(("layout", "replay"), [("actors", "device"), ("seed", "host")])
@pytest.mark.full
@pytest.mark.optimised
def test_a_synchronous_layout_changes_nothing(layout, replay):
    algo = DQN(**SMALL | RAINBOW, replay=replay)
    assert weft.check(algo, "gymnax:CartPole-v1", layout=layout, iterations=3).identical


def test_all_gradient_steps_run_after_the_warm_up():
    for layout in ("fused", "apex:actors=4,replays=2"):
        result = train_in_memory(DQN(**SMALL | RAINBOW), "gymnax:CartPole-v1", layout=layout, steps=120)
        assert result.steps == 120 and result.iterations == 30
        assert int(result.state.learner.updates) == (30 - 10) * 2, layout


def test_a_continuous_action_space_is_refused():
    with pytest.raises(WeftError, match="this algorithm needs a Discrete action space.*use sac"):
        train_in_memory(DQN(**SMALL), "gymnax:Pendulum-v1", steps=100)


def test_a_batch_that_does_not_divide_between_replicas_is_refused():
    with pytest.raises(WeftError, match="batch_size=7 cannot be divided like 4 environments"):
        train_in_memory(DQN(**SMALL | {"batch_size": 7}), "gymnax:CartPole-v1", layout="allreduce:workers=2", steps=100)


class Bandit:
    """Episodes of one step: the reward is 1 for the action that the observation names."""

    observation_space = gym.spaces.Box(0, 1, (3,), np.float32)
    action_space = gym.spaces.Discrete(3)

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        obs = self.show(key)
        return (obs, jnp.zeros(self.num_envs)), obs

    @weft.fragment(name="env")
    def step(self, state: Any, action: Any, key: jax.Array, last: Any = None) -> tuple[Any, TimeStep]:
        reward = state[0][jnp.arange(self.num_envs), action]
        obs, yes = self.show(key), jnp.ones(self.num_envs, bool)
        return (obs, state[1] + reward), TimeStep(obs, reward, yes, ~yes, state[0], yes)

    @weft.fragment(name="env.episodes")
    def episodes(self, state: Any) -> tuple[Any, dict[str, Mean]]:
        return (state[0], jnp.zeros_like(state[1])), {"episode_return": Mean.of(state[1])}

    def show(self, key: jax.Array) -> jax.Array:
        return jax.nn.one_hot(jax.random.randint(key, (self.num_envs,), 0, 3), 3)


@pytest.mark.parametrize(
    ("layout", "settings"),
    [("fused", {}), ("apex:actors=2", RAINBOW | {"v_min": -1.0, "v_max": 2.0})],
    ids=["plain", "rainbow"],
)
def test_q_values_converge(layout, settings):
    algo = DQN(**SMALL | settings | {"hidden": (16,), "lr": 1e-2, "updates": 4}, epsilon=0.5)
    result = train_in_memory(algo, Bandit, layout=layout, steps=2400)
    q = algo.q_values(result.state.net, jnp.eye(3))
    np.testing.assert_allclose(q, jnp.eye(3), atol=0.15)
