"""Algorithms whose networks remember."""

import dataclasses

import equinox as eqx
import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.algos.cue import Cue
from tests.algos.experience import SMALL, collect, different, learned
from weft import WeftError, check
from weft.algos import ALGOS
from weft.algos.on_policy import OnPolicy
from weft.algos.ppo import PPO
from weft.envs import make
from weft.nets.actor_critic import ActorCritic
from weft.ops.memory import forget, see

RECALL = {"memory": "gru", "memory_size": 8, "hidden": (8,)}


@pytest.fixture(params=[name for name, kind in ALGOS.items() if issubclass(kind, OnPolicy)])
def kind(request):
    return ALGOS[request.param]


def final_return(algo, iterations):
    env = Cue(algo.num_envs)
    run = jax.jit(lambda state: jax.lax.scan(lambda s, _: algo.step(env, s), state, length=iterations)[1])
    returns = run(algo.init(env, jax.random.key(0)))["episode_return"]
    return returns.total[-5:].sum() / returns.count[-5:].sum()


@pytest.mark.parametrize(("memory", "solved"), [("none", False), ("gru", True), ("lstm", True)])
def test_only_with_a_memory_is_a_cue_acted_on_later(memory, solved):
    algo = PPO(num_envs=16, horizon=20, hidden=(16,), lr=5e-3, memory=memory, memory_size=16)
    found = final_return(algo, iterations=50)
    assert found > 0.9 if solved else found < 0.3


@pytest.mark.parametrize("memory", ["gru", "lstm"])
def test_a_step_keeps_the_types_of_the_state(kind, memory, key):
    algo, env = kind(**SMALL, memory=memory), make("gymnax:CartPole-v1", SMALL["num_envs"])
    state = jax.eval_shape(lambda key: algo.init(env, key), key)
    after, _ = jax.eval_shape(lambda state: algo.step(env, state), state)
    types = [jax.tree.map(lambda x: (x.shape, x.dtype, x.weak_type), tree) for tree in (state, after)]
    assert types[0] == types[1] and jax.tree.leaves(state.memory)


@pytest.mark.parametrize("layout", ["actors", "seed"])
def test_layouts_change_nothing(layout):
    found = check(PPO(num_envs=4, horizon=8, **RECALL), "gymnax:CartPole-v1", layout=layout, iterations=3)
    assert found.identical, found.table()


@pytest.fixture
def start(key):
    env = Cue(SMALL["num_envs"])
    algo = PPO(**SMALL, **RECALL, epochs=1, minibatches=1)
    state = algo.init(env, key)
    # A policy that is far from even, in a rollout that is not the first: its memory does not start at zero.
    net = eqx.tree_at(lambda net: net.net.head.logits.weight, state.net, replace_fn=lambda weight: 100 * weight)
    state = dataclasses.replace(algo.step(env, state)[0], net=net)
    return algo, state, collect(algo, env, state)


def test_learning_goes_through_what_acting_went_through(start):
    """With one step per rollout the probabilities of actions, recorded and learned from, must agree."""
    algo, state, seen = start
    assert jnp.abs(state.memory[0]).max() > 0
    _, _, metrics = algo.learn(state.net, state.opt, seen, jnp.ones(()), state.key)
    assert metrics["clip_fraction"].total == 0
    np.testing.assert_allclose(metrics["approx_kl"].total, 0, atol=1e-5)
    elsewhere = dataclasses.replace(seen, past=jax.tree.map(jnp.zeros_like, seen.past))
    _, _, metrics = algo.learn(state.net, state.opt, elsewhere, jnp.ones(()), state.key)
    assert metrics["approx_kl"].total > 1e-4


def test_where_a_truncated_episode_led_is_valued_with_what_was_remembered_there(start):
    algo, state, seen = start
    t = 7
    cut = {"terminated": jnp.zeros_like(seen.terminated), "truncated": jnp.zeros_like(seen.truncated).at[t].set(True)}
    seen = dataclasses.replace(seen, **cut, reward=jnp.zeros_like(seen.reward))
    seen = dataclasses.replace(seen, past=dataclasses.replace(seen.past, ended=seen.ended))
    memory = jax.tree.map(lambda x: x[0], seen.past.memory)
    for obs in seen.obs[: t + 1]:
        memory, now = see(state.net, memory, obs)
    _, last = see(state.net, memory, seen.final_obs[t])
    expected = algo.gamma * state.net.value(last) - state.net.value(now)
    np.testing.assert_allclose(algo.samples(state.net, seen).advantage[t], expected, rtol=1e-4, atol=1e-6)


def test_nothing_before_an_end_changes_what_is_learned_of_the_steps_after_it(start):
    algo, state, seen = start
    t = 9
    seen = dataclasses.replace(
        seen, terminated=seen.terminated.at[t].set(True), valid=seen.valid.at[: t + 1].set(False)
    )
    seen = dataclasses.replace(seen, past=dataclasses.replace(seen.past, ended=seen.ended))
    other = dataclasses.replace(
        seen,
        obs=seen.obs.at[: t + 1].add(1.0),
        past=dataclasses.replace(seen.past, memory=jax.tree.map(lambda x: x + 1.0, seen.past.memory)),
    )
    assert not different(learned(algo, state, seen), learned(algo, state, other))


def test_a_rollout_forgets_where_episodes_ended(start):
    algo, state, seen = start
    memory = jax.tree.map(lambda x: x[0], seen.past.memory)
    for t in range(12):
        memory, now = see(state.net, memory, seen.obs[t])
        np.testing.assert_allclose(state.net.policy(now).logits, seen.extra.logits[t], rtol=1e-4, atol=1e-6)
        memory = forget(memory, seen.terminated[t] | seen.truncated[t])
    assert seen.terminated[:12].any()


def test_environments_that_do_not_divide_are_refused(key):
    algo, env = PPO(num_envs=6, horizon=8, **RECALL), Cue(6)
    with pytest.raises(WeftError, match="with a memory environments alone"):
        jax.eval_shape(lambda key: algo.step(env, algo.init(env, key)), key)


@pytest.mark.parametrize("greedy", [True, False])
def test_playing_remembers_within_an_episode_and_not_beyond(greedy, key):
    env = Cue(4)
    algo = PPO(num_envs=4, **RECALL)
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


class Mine(eqx.Module):
    """Somebody's own network: nothing of weft's but a distribution, and no memory."""

    inner: ActorCritic

    def __init__(self, observation_space, action_space, *, key):
        self.inner = ActorCritic(observation_space, action_space, hidden=(4,), activation="relu", shared=True, key=key)

    def policy(self, obs):
        return self.inner.policy(obs)

    def value(self, obs):
        return self.inner.value(obs)


def test_a_network_of_ones_own_is_trained(kind, key):
    algo, env = kind(**SMALL, net=Mine), make("gymnax:CartPole-v1", SMALL["num_envs"])
    state = algo.init(env, key)
    assert isinstance(state.net, Mine)
    after, _ = algo.step(env, state)
    assert different(after.net, state.net)
    with pytest.raises(WeftError, match="one given as `net` brings its own"):
        kind(**SMALL, net=Mine, memory="gru").init(env, key)


def test_actions_of_every_kind_and_masks_are_learned(kind, key):
    """One iteration on a made-up environment whose spaces are nested and whose actions are masked."""
    algo, env = kind(num_envs=4, horizon=8, hidden=(8,)), Nested(4)
    state = algo.init(env, key)
    after, metrics = jax.jit(lambda state: algo.step(env, state))(state)
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves((after.net, metrics)))
    assert different(after.net, state.net)


@dataclasses.dataclass(frozen=True)
class Nested(Cue):
    """The cue, seen and acted on in nested spaces, with one tool out of three ruled out."""

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
