"""Algorithms with recurrent networks."""

import dataclasses

import equinox as eqx
import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.algos.cue import Cue
from tests.algos.experience import SMALL, collect, different, learned_net
from weft import WeftError, check
from weft.algos import ALGOS
from weft.algos.on_policy import OnPolicy
from weft.algos.ppo import PPO
from weft.envs import make
from weft.nets.actor_critic import ActorCritic
from weft.ops.memory import forget, step_memory

RECURRENT = {"memory": "gru", "memory_size": 8, "hidden": (8,)}


@pytest.fixture(params=[name for name, kind in ALGOS.items() if issubclass(kind, OnPolicy)])
def kind(request):
    return ALGOS[request.param]


def final_return(algo, iterations):
    env = Cue(algo.num_envs)
    run = jax.jit(lambda state: jax.lax.scan(lambda s, _: algo.step(env, s), state, length=iterations)[1])
    returns = run(algo.init(env, jax.random.key(0)))["episode_return"]
    return returns.total[-5:].sum() / returns.count[-5:].sum()


@pytest.mark.parametrize(("memory", "solved"), [("none", False), ("gru", True), ("lstm", True)])
def test_only_recurrent_networks_solve_the_cue_task(memory, solved):
    algo = PPO(num_envs=16, horizon=20, hidden=(16,), lr=5e-3, memory=memory, memory_size=16)
    found = final_return(algo, iterations=50)
    assert found > 0.9 if solved else found < 0.3


@pytest.mark.parametrize("memory", ["gru", "lstm"])
def test_an_iteration_keeps_the_shapes_and_types_of_the_state(kind, memory, key):
    algo, env = kind(**SMALL, memory=memory), make("gymnax:CartPole-v1", SMALL["num_envs"])
    state = jax.eval_shape(lambda key: algo.init(env, key), key)
    after, _ = jax.eval_shape(lambda state: algo.step(env, state), state)
    types = [jax.tree.map(lambda x: (x.shape, x.dtype, x.weak_type), tree) for tree in (state, after)]
    assert types[0] == types[1] and jax.tree.leaves(state.memory)


@pytest.mark.parametrize("layout", ["actors", pytest.param("seed", marks=pytest.mark.full)])
@pytest.mark.optimised
def test_layouts_change_nothing(layout):
    found = check(PPO(num_envs=4, horizon=8, **RECURRENT), "gymnax:CartPole-v1", layout=layout, iterations=3)
    assert found.identical, found.table()


@pytest.fixture
def start(key):
    env = Cue(SMALL["num_envs"])
    algo = PPO(**SMALL, **RECURRENT, epochs=1, minibatches=1)
    state = algo.init(env, key)
    # A policy far from uniform, in the second rollout, so that its memory does not start at zero.
    net = eqx.tree_at(lambda net: net.net.head.logits.weight, state.net, replace_fn=lambda weight: 100 * weight)
    state = dataclasses.replace(algo.step(env, state)[0], net=net)
    return algo, state, collect(algo, env, state)


def test_learning_unrolls_the_same_memories_as_acting(start):
    """With one gradient step per rollout, the action probabilities of acting and of learning are equal."""
    algo, state, trajectory = start
    assert jnp.abs(state.memory[0]).max() > 0
    _, _, metrics = algo.learn(state.net, state.opt, trajectory, jnp.ones(()), state.key)
    assert metrics["clip_fraction"].total == 0
    np.testing.assert_allclose(metrics["approx_kl"].total, 0, atol=1e-5)
    other_memory = dataclasses.replace(trajectory, past=jax.tree.map(jnp.zeros_like, trajectory.past))
    _, _, metrics = algo.learn(state.net, state.opt, other_memory, jnp.ones(()), state.key)
    assert metrics["approx_kl"].total > 1e-4


def test_the_final_observation_of_a_truncated_episode_is_valued_with_its_memory(start):
    algo, state, trajectory = start
    t = 7
    cut = {
        "terminated": jnp.zeros_like(trajectory.terminated),
        "truncated": jnp.zeros_like(trajectory.truncated).at[t].set(True),
    }
    trajectory = dataclasses.replace(trajectory, **cut, reward=jnp.zeros_like(trajectory.reward))
    trajectory = dataclasses.replace(trajectory, past=dataclasses.replace(trajectory.past, ended=trajectory.ended))
    memory = jax.tree.map(lambda x: x[0], trajectory.past.memory)
    for obs in trajectory.obs[: t + 1]:
        memory, now = step_memory(state.net, memory, obs)
    _, last = step_memory(state.net, memory, trajectory.final_obs[t])
    expected = algo.gamma * state.net.value(last) - state.net.value(now)
    np.testing.assert_allclose(algo.samples(state.net, trajectory).advantage[t], expected, rtol=1e-4, atol=1e-6)


def test_steps_before_the_end_of_an_episode_do_not_affect_learning_after_it(start):
    algo, state, trajectory = start
    t = 9
    trajectory = dataclasses.replace(
        trajectory, terminated=trajectory.terminated.at[t].set(True), valid=trajectory.valid.at[: t + 1].set(False)
    )
    trajectory = dataclasses.replace(trajectory, past=dataclasses.replace(trajectory.past, ended=trajectory.ended))
    other = dataclasses.replace(
        trajectory,
        obs=trajectory.obs.at[: t + 1].add(1.0),
        past=dataclasses.replace(trajectory.past, memory=jax.tree.map(lambda x: x + 1.0, trajectory.past.memory)),
    )
    assert not different(learned_net(algo, state, trajectory), learned_net(algo, state, other))


def test_a_rollout_resets_the_memory_at_the_end_of_an_episode(start):
    algo, state, trajectory = start
    memory = jax.tree.map(lambda x: x[0], trajectory.past.memory)
    for t in range(12):
        memory, now = step_memory(state.net, memory, trajectory.obs[t])
        np.testing.assert_allclose(state.net.policy(now).logits, trajectory.extra.logits[t], rtol=1e-4, atol=1e-6)
        memory = forget(memory, trajectory.terminated[t] | trajectory.truncated[t])
    assert trajectory.terminated[:12].any()


def test_minibatches_that_do_not_divide_the_environments_are_refused(key):
    algo, env = PPO(num_envs=6, horizon=8, **RECURRENT), Cue(6)
    with pytest.raises(WeftError, match="6 environments of a replica, with 1 items each, .* a multiple of 4"):
        jax.eval_shape(lambda key: algo.step(env, algo.init(env, key)), key)


@pytest.mark.parametrize("greedy", [True, False])
def test_a_player_resets_its_memory_at_the_start_of_an_episode(greedy, key):
    env = Cue(4)
    algo = PPO(num_envs=4, **RECURRENT)
    net = algo.build(env, key)
    memory, play = algo.player(env, net, greedy=greedy)
    _, obs = env.reset(key)
    first, action = play(memory, obs, jnp.ones(4, bool), key)
    again, same = play(first, obs, jnp.ones(4, bool), key)
    later, _ = play(first, obs, jnp.zeros(4, bool), key)
    assert action.shape == (4,) and action.dtype == jnp.int32
    jax.tree.map(np.testing.assert_array_equal, first, again)
    np.testing.assert_array_equal(action, same)
    assert different(first, later)


class CustomNet(eqx.Module):
    """A custom network without memory."""

    inner: ActorCritic

    def __init__(self, observation_space, action_space, *, key):
        self.inner = ActorCritic(observation_space, action_space, hidden=(4,), activation="relu", shared=True, key=key)

    def policy(self, obs):
        return self.inner.policy(obs)

    def value(self, obs):
        return self.inner.value(obs)


def test_a_custom_network_is_trained(kind, key):
    algo, env = kind(**SMALL, net=CustomNet), make("gymnax:CartPole-v1", SMALL["num_envs"])
    state = algo.init(env, key)
    assert isinstance(state.net, CustomNet)
    after, _ = algo.step(env, state)
    assert different(after.net, state.net)
    with pytest.raises(WeftError, match="one given as `net` brings its own"):
        kind(**SMALL, net=CustomNet, memory="gru").init(env, key)


def test_nested_spaces_with_action_masks_are_supported(kind, key):
    algo, env = kind(num_envs=4, horizon=8, hidden=(8,)), Nested(4)
    state = algo.init(env, key)
    after, metrics = jax.jit(lambda state: algo.step(env, state))(state)
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves((after.net, metrics)))
    assert different(after.net, state.net)


@dataclasses.dataclass(frozen=True)
class Nested(Cue):
    """The cue task with nested spaces, where the mask rules out one of three tools."""

    observation_space = gym.spaces.Dict(
        observation=gym.spaces.Dict(cue=gym.spaces.Box(-1, 1, (2,)), place=gym.spaces.Discrete(3)),
        action_mask=gym.spaces.Dict(tool=gym.spaces.MultiBinary(5)),
    )
    action_space = gym.spaces.Dict(
        aim=gym.spaces.Box(-1, 1, (2, 2)), side=gym.spaces.Discrete(2), tool=gym.spaces.MultiDiscrete([3, 2])
    )

    def show(self, state):
        mask = {"tool": jnp.tile(jnp.array([1, 0, 1, 1, 1], jnp.int8), (self.num_envs, 1))}
        return {"observation": {"cue": super().show(state), "place": state["time"] % 3}, "action_mask": mask}

    def step(self, state, action, key, last=None):
        return super().step(state, action["side"] + (action["tool"][:, 0] == 1) * 100, key, last)
