from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import weft
from tests.envs.scripted_env import LENGTH, Scripted, play
from weft import Algorithm, Mean, WeftError, fragment
from weft.algos.ppo import PPO
from weft.envs import make
from weft.envs.wrappers import clip_reward, normalise_obs, normalise_reward, reset_with_statistics
from weft.envs.wrappers.moments import RunningMoments
from weft.runtime.driver import Plan
from weft.runtime.local import LocalEngine

SMALL = {"num_envs": 4, "horizon": 8, "hidden": (8,), "minibatches": 2, "epochs": 1}
SCALES = [(0.0, 1.0), (1e4, 1.0), (-1e4, 0.1), (3.0, 100.0)]


def counted(env, steps=LENGTH):
    """Returns all values of `place` that the moments include, as float64: the first ones and those of valid steps."""
    script = env.script
    place = script["obs"]["place"].astype(np.float64)
    later = place[:, 1 : steps + 1][script["valid"][:, :steps]]
    return np.concatenate([place[:, 0], later])


def returns_by_hand(env, gamma):
    """Returns the discounted return after every valid step, as float64."""
    script, seen = env.script, []
    for b in range(env.num_envs):
        running = 0.0
        for t in np.flatnonzero(script["valid"][b]):
            running = gamma * running + np.float64(script["reward"][b, t])
            seen.append(running)
            running = 0.0 if script["terminated"][b, t] or script["truncated"][b, t] else running
    return np.array(seen)


@pytest.mark.parametrize(("centre", "spread"), SCALES)
@pytest.mark.parametrize("merge_every", [1, 7, LENGTH])
def test_moments_equal_those_of_all_data(centre, spread, merge_every):
    inner = Scripted(5, centre, spread)
    env = normalise_obs(inner)
    state, _, _ = play(env, merge_every=merge_every)
    moments, data = env.episodes(state)[0].wrapper.moments, counted(inner)
    assert moments.count == len(data)
    np.testing.assert_allclose(moments.mean[0], data.mean(axis=0), rtol=1e-6, atol=1e-5 * spread)
    # Steps between float32 numbers around 10,000 are 0.001 wide.
    np.testing.assert_allclose(moments.variance[0], data.var(axis=0), rtol=1e-5 + 1e-9 * (centre / spread) ** 2 / 10)


def test_observations_are_scaled_by_the_moments_of_earlier_iterations():
    inner = Scripted(4, 100.0, 5.0)
    env = normalise_obs(inner)
    state, _, seen = play(env, 20, merge_every=20)
    _, _, later = play(env, 30, merge_every=20)
    data, raw = counted(inner, 20), inner.script["obs"]["place"]
    first = raw[:, 0].mean(axis=0)
    np.testing.assert_allclose(seen.obs["place"], np.clip(raw[:, 1:21] - first, -10, 10), rtol=1e-5, atol=1e-5)
    scaled = np.clip((raw[:, 21:31] - data.mean(axis=0)) / data.std(axis=0), -10, 10)
    np.testing.assert_allclose(later.obs["place"][:, 20:], scaled, rtol=1e-4, atol=1e-4)
    final = inner.script["final"]["place"][:, 20:30]
    scaled = np.clip((final - data.mean(axis=0)) / data.std(axis=0), -10, 10)
    np.testing.assert_allclose(later.final_obs["place"][:, 20:], scaled, rtol=1e-4, atol=1e-4)
    assert state.wrapper.sums.count.tolist() == [0.0] * 4


def test_only_floating_point_parts_are_normalised():
    inner = Scripted(4)
    env = normalise_obs(inner)
    _, first, seen = play(env, 5)
    for name in ("image", "room"):
        np.testing.assert_array_equal(seen.obs[name], inner.script["obs"][name][:, 1:6])
        np.testing.assert_array_equal(first[name], inner.script["obs"][name][:, 0])
        assert env.observation_space[name] == inner.observation_space[name]
    assert env.observation_space["place"] == gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)


def test_a_constant_observation_becomes_zero():
    _, _, seen = play(normalise_obs(Scripted(4, 12345.6, 0.0)), 9, merge_every=3)
    assert not seen.obs["place"].any()


def test_an_observation_without_floating_point_parts_is_rejected():
    @dataclass(frozen=True)
    class Images(Scripted):
        observation_space = gym.spaces.Box(0, 255, (4, 4), np.uint8)

    with pytest.raises(WeftError, match="no part of Box.* is floating-point"):
        normalise_obs(Images(2))


@pytest.mark.parametrize("gamma", [0.0, 0.9, 0.99])
def test_rewards_are_divided_by_the_standard_deviation_of_returns(gamma):
    inner = Scripted(5)
    state, _, seen = play(normalise_reward(inner, gamma=gamma), merge_every=20)
    moments, returns = state.wrapper.running.moments, returns_by_hand(inner, gamma)
    np.testing.assert_allclose(moments.mean[0], returns.mean(), rtol=1e-5)
    np.testing.assert_allclose(moments.variance[0], returns.var(), rtol=1e-5)
    raw = inner.script["reward"]
    np.testing.assert_allclose(seen.reward[:, :20], np.clip(raw[:, :20], -10, 10))
    scale = seen.reward[:, 40:] / np.where(raw[:, 40:] == 0, 1, raw[:, 40:])
    assert np.ptp(scale[raw[:, 40:] != 0]) < 1e-6 and not seen.reward[:, 40:][raw[:, 40:] == 0].any()


@pytest.mark.parametrize("wrapped", [normalise_reward, clip_reward])
def test_metrics_report_the_original_rewards(wrapped):
    _, plain = Scripted(4).episodes(play(Scripted(4))[0])
    env = wrapped(Scripted(4))
    _, metrics = env.episodes(play(env)[0])
    assert jax.tree.all(jax.tree.map(np.array_equal, plain, metrics)) and "rows" in metrics


@pytest.mark.parametrize("gamma", [-0.1, 1.1])
def test_a_discount_outside_zero_and_one_is_rejected(gamma):
    with pytest.raises(WeftError, match="gamma is"):
        normalise_reward(Scripted(2), gamma=gamma)


@pytest.mark.parametrize("wrapped", [normalise_obs, normalise_reward])
def test_moments_have_no_batch_axis_and_change_only_in_episodes(wrapped, key):
    envs = wrapped(Scripted(4)), wrapped(Scripted(6))
    states = [jax.eval_shape(env.reset, key)[0] for env in envs]
    same = jax.tree.leaves(jax.tree.map(lambda a, b: a.shape == b.shape, *states))
    before, after = envs[0].reset(key)[0], play(envs[0], 5)[0]
    running = [getattr(state.wrapper, "running", state.wrapper) for state in (before, after)]
    assert sum(same) == len(jax.tree.leaves(running[0].moments)) == 3
    assert jax.tree.all(jax.tree.map(np.array_equal, running[0].moments, running[1].moments))
    assert not np.array_equal(running[0].sums.count, running[1].sums.count)


def test_a_reset_with_statistics_keeps_the_moments(key):
    env, other = (normalise_obs(normalise_reward(Scripted(n, 50.0, 9.0))) for n in (4, 3))
    trained, _, _ = play(env, 20, merge_every=20)
    small, large = (jax.eval_shape(env.reset, key)[0], jax.eval_shape(other.reset, key)[0])
    knowledge = jax.tree.map(lambda leaf, a, b: leaf if a.shape == b.shape else None, trained, small, large)
    state, obs = reset_with_statistics(other, key, knowledge)
    assert jax.tree.all(jax.tree.map(np.array_equal, state.wrapper.moments, trained.wrapper.moments))
    moments = trained.inner.wrapper.running.moments
    assert jax.tree.all(jax.tree.map(np.array_equal, state.inner.wrapper.running.moments, moments))
    data, raw = counted(Scripted(4, 50.0, 9.0), 20), Scripted(3, 50.0, 9.0).script["obs"]["place"][:, 0]
    np.testing.assert_allclose(obs["place"], (raw - data.mean(axis=0)) / data.std(axis=0), rtol=1e-4, atol=1e-4)
    assert state.wrapper.sums.count.tolist() == [1.0] * 3


def test_merging_no_data_changes_nothing():
    values = (jnp.ones((2, 3)),)
    running = RunningMoments.init(values, mean=(jnp.full(3, 7.0),))
    for moments in (running.merge().moments, running.add(values, where=jnp.zeros(2, bool)).merge().moments):
        assert jax.tree.all(jax.tree.map(np.array_equal, moments, running.moments))


@dataclass(frozen=True, kw_only=True)
class Watch(Algorithm):
    """Steps environments and returns the moments of the replica of every row."""

    num_envs: int = 4

    def init(self, env: Any, key: jax.Array) -> Any:
        env_state, obs = env.reset(key)
        return {"env": env_state, "obs": obs, "moments": self.moments(env, env_state), "iteration": jnp.zeros((), int)}

    def step(self, env: Any, state: Any) -> tuple[Any, dict[str, Mean]]:
        def tick(carry: Any, _: Any) -> tuple[Any, None]:
            env_state, obs = carry
            env_state, timestep = env.step(env_state, self.act(obs), jax.random.key(0))
            return (env_state, timestep.obs), None

        (env_state, obs), _ = jax.lax.scan(tick, (state["env"], state["obs"]), length=10)
        env_state, metrics = env.episodes(env_state)
        moments, iteration = self.moments(env, env_state), self.learn(state["iteration"])
        return {"env": env_state, "obs": obs, "moments": moments, "iteration": iteration}, metrics

    @fragment
    def act(self, obs: Any) -> jax.Array:
        return jnp.zeros_like(obs["room"])

    @fragment
    def learn(self, iteration: jax.Array) -> jax.Array:
        return iteration + 1

    @fragment(name="env.moments")
    def moments(self, env: Any, env_state: Any) -> Any:
        return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (env.num_envs, *leaf.shape)), env_state.wrapper.moments)


@pytest.mark.parametrize(
    "layout", ["fused", "fused:devices=2", "allreduce:workers=2", "actors:actors=2", "actors:actors=4", "seed:envs=2"]
)
def test_every_replica_has_the_moments_of_all_data(layout):
    def env(num_envs):
        return normalise_obs(normalise_reward(Scripted(num_envs, 1e4, 1.0)))

    moments, data = run(Watch(), env, layout, 3)["moments"], counted(Scripted(4, 1e4, 1.0), 30)
    assert all((np.asarray(leaf) == np.asarray(leaf)[0]).all() for leaf in jax.tree.leaves(moments))
    assert moments.count[0] == len(data)
    np.testing.assert_allclose(moments.mean[0][0], data.mean(axis=0), rtol=1e-6, atol=1e-5)
    np.testing.assert_allclose(moments.variance[0][0], data.var(axis=0), rtol=2e-5)


def run(algo, env, layout, iterations):
    """Returns the state after some iterations."""
    plan = Plan.of(algo, env, layout)
    return LocalEngine(plan.project(), stuck_after=60.0).run(plan.init(0), iterations)


def wrapped_cart_pole(num_envs):
    return normalise_reward(normalise_obs(make("gymnax:CartPole-v1", num_envs)))


@pytest.mark.parametrize(
    "layout", ["seed", *(pytest.param(each, marks=pytest.mark.full) for each in ("actors", "allreduce"))]
)
@pytest.mark.optimised
def test_layouts_with_one_replica_give_identical_results(layout):
    assert weft.check(PPO(**SMALL), wrapped_cart_pole, layout=layout, iterations=3).identical


@pytest.mark.full
@pytest.mark.parametrize("layout", ["fused:devices=2", "allreduce:workers=2", "actors:actors=2", "seed:envs=2"])
def test_ppo_trains_in_every_layout(layout):
    moments = run(PPO(**SMALL), wrapped_cart_pole, layout, 3).env.inner.wrapper.moments
    assert moments.count == 4 + 3 * 4 * 8 and np.isfinite(moments.variance[0]).all()
