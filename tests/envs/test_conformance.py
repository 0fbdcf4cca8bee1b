"""Properties of every environment, with and without wrappers. A new environment is one more case in `CASES`.

Host environments cannot return to an earlier state, so tests check one recorded random walk of every case.
"""

import functools
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tests.envs.toy_brax  # noqa: F401, registers a ball
from tests.envs.random_walks import actions
from weft.envs import make, spaces
from weft.envs.wrappers import wrap
from weft.envs.wrappers.wrapper import map_boxes
from weft.host import own_objects

NUM_ENVS = 3
REWARD_WRAPPERS = ("normalise_reward", "clip_reward")


@dataclass(frozen=True)
class Case:
    """An environment, and a length of random walks that is long enough for some episodes to end."""

    spec: str
    wrappers: tuple[str, ...] = ()
    length: int = 60
    options: tuple[tuple[str, Any], ...] = ()
    random: bool = True
    """Whether the walk depends on the key."""

    def env(self, num_envs: int = NUM_ENVS) -> Any:
        return wrap(make(self.spec, num_envs, **dict(self.options)), self.wrappers)

    def __str__(self) -> str:
        options = [f"{name}={value}" for name, value in self.options]
        return "+".join([self.spec, *options, *self.wrappers])


STACK = ("time_limit=7", "frame_stack=3", "normalise_obs")
CASES = [
    Case("gymnax:CartPole-v1", length=510),
    Case("gymnax:Pendulum-v1", length=210),
    Case("gymnax:PointRobot-misc", length=110),
    Case("gymnax:Catch-bsuite"),
    Case("gymnax:DeepSea-bsuite", random=False),
    Case("gymnax:UmbrellaChain-bsuite"),
    Case("gymnax:FourRooms-misc", length=510),
    Case("gymnax:FrozenLake-misc"),
    Case("gymnax:Reacher-misc", length=110),
    Case("gymnax:Breakout-MinAtar"),
    Case("brax:ball"),
    Case("brax:ball", options=(("episode_length", 5), ("fresh", False))),
    Case("gym:CartPole-v1"),
    Case("gym:FrozenLake-v1", options=(("vector", "workers"), ("workers", 2))),
    Case("gym:CartPole-v1", options=(("vector", "sync"), ("autoreset", "next_step"))),
    Case("gym:ALE/Pong-v5", options=(("max_frames", 80), ("workers", 1)), length=40),
    Case("tests.envs.toy_envs:Terminating"),
    Case("tests.envs.toy_envs:Truncating"),
    Case("tests.envs.toy_envs:ReadOnly"),
    Case("tests.envs.toy_envs:Reusing"),
    Case("tests.envs.toy_envs:ChangingInfo"),
    Case("tests.envs.toy_envs:Uneven"),
    Case("tests.envs.toy_envs:Both"),
    Case("tests.envs.toy_envs:OneStep"),
    Case("tests.envs.toy_envs:Wide"),
    Case("tests.envs.toy_envs:Nested"),
    Case("tests.envs.toy_envs:Offset"),
    Case("tests.envs.toy_envs:Bounded"),
    Case("tests.envs.toy_envs:Masking"),
    Case("envpool:CartPole-v1"),
    Case("envpool:Pendulum-v1", length=210),
    Case("gymnax:CartPole-v1", ("normalise_reward",)),
    Case("gymnax:Breakout-MinAtar", (*STACK, "clip_reward")),
    Case("brax:ball", STACK),
    Case("tests.envs.toy_envs:Nested", (*STACK, "normalise_reward=0.9")),
    Case("tests.envs.toy_envs:Masking", STACK),
    Case("envpool:CartPole-v1", STACK),
]
JITTED = [*{case.spec.partition(":")[0]: case for case in CASES}.values()]
BOUNDED = [case for case in CASES if isinstance(case.env().action_space, gym.spaces.Box)]


@dataclass(frozen=True)
class Walk:
    """The record of a random walk; the leaves of `steps` are [T, B, ...]."""

    first: Any
    steps: Any
    last: np.ndarray
    metrics: Any
    metrics_again: Any
    types: list[Any]
    """The types of the state: at the start, after the steps, and after the metrics were read."""


@functools.cache
def walked(case: Case, *, cut: bool = False, seed: int = 1, length: int | None = None) -> Walk:
    """Records a walk with random actions, the same for every seed; with `cut`, episodes are truncated at random."""
    env, length = case.env(), length or case.length
    key_reset, key_env = jax.random.split(jax.random.key(seed))
    last = np.random.default_rng(0).random((length, NUM_ENVS)) < (0.2 if cut else 0.0)
    with own_objects():
        state, first = env.reset(key_reset)
        types, steps = [jax.tree.map(jax.typeof, state)], []
        plan = zip(actions(env.action_space, range(NUM_ENVS), length), jax.random.split(key_env, length), strict=True)
        for t, (action, key) in enumerate(plan):
            extra = (jnp.asarray(last[t]),) if cut else ()
            state, timestep = env.step(state, jax.tree.map(jnp.asarray, action), key, *extra)
            steps.append(timestep)
        types.append(jax.tree.map(jax.typeof, state))
        state, metrics = env.episodes(state)
        types.append(jax.tree.map(jax.typeof, state))
        _, again = env.episodes(state)
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *steps)
    return Walk(first, stacked, last, jax.device_get(metrics), jax.device_get(again), types)


@pytest.fixture(params=CASES, ids=str)
def case(request):
    return request.param


@pytest.fixture(params=[False, True], ids=["free", "cut"])
def walk(case, request):
    return walked(case, cut=request.param)


def episodes_by_hand(steps):
    """Returns the returns and lengths of finished episodes, over valid rows, one environment after another."""
    found = []
    for b in range(NUM_ENVS):
        total, length = 0.0, 0
        for t in np.flatnonzero(steps.valid[:, b]):
            total, length = total + np.float64(steps.reward[t, b]), length + 1
            if steps.terminated[t, b] or steps.truncated[t, b]:
                found.append((total, length))
                total, length = 0.0, 0
    return np.array(found).reshape(-1, 2)


def ended(steps):
    return steps.terminated | steps.truncated


def differs(steps):
    """Returns where the final observation differs from the next one."""
    pairs = zip(jax.tree.leaves(steps.obs), jax.tree.leaves(steps.final_obs), strict=True)
    parts = [(obs != final).reshape(*steps.valid.shape, -1).any(axis=-1) for obs, final in pairs]
    return np.logical_or.reduce(parts)


def test_an_environment_is_a_value(case):
    assert case.env() == case.env() and hash(case.env()) == hash(case.env())
    assert case.env(NUM_ENVS + 1) != case.env()


def test_every_state_leaf_except_statistics_has_the_batch_axis(case, key):
    states = [jax.eval_shape(case.env(num_envs).reset, key)[0] for num_envs in (NUM_ENVS, NUM_ENVS + 1)]
    for (path, leaf), other in zip(jax.tree.leaves_with_path(states[0]), jax.tree.leaves(states[1]), strict=True):
        if ".moments" in jax.tree_util.keystr(path):
            assert leaf.shape == other.shape
        else:
            assert (leaf.shape[0], other.shape[0]) == (NUM_ENVS, NUM_ENVS + 1) and leaf.shape[1:] == other.shape[1:]


def test_observations_have_the_shapes_and_types_of_their_space(case, walk):
    shapes = spaces.shapes(case.env().observation_space, NUM_ENVS)
    seen = jax.tree.map(lambda leaf: leaf[0], (walk.steps.obs, walk.steps.final_obs))
    for obs in (walk.first, *seen):
        assert jax.tree.structure(obs) == jax.tree.structure(shapes)
        assert jax.tree.all(jax.tree.map(lambda x, s: (x.shape, x.dtype) == (s.shape, s.dtype), obs, shapes))


def test_rewards_are_float32_and_flags_are_bool(walk):
    shape = walk.last.shape
    assert (walk.steps.reward.shape, walk.steps.reward.dtype) == (shape, np.float32)
    for flags in (walk.steps.terminated, walk.steps.truncated, walk.steps.valid):
        assert (flags.shape, flags.dtype) == (shape, bool)


def test_a_state_keeps_its_types(walk):
    before, stepped, taken = walk.types
    assert before == stepped == taken
    assert not any(leaf.weak_type for leaf in jax.tree.leaves(before))


def test_observations_lie_in_their_space(case, walk):
    space = map_boxes(_roomier, case.env().observation_space)
    rows = [jax.tree.map(lambda leaf, b=b: np.asarray(leaf)[b], walk.first) for b in range(NUM_ENVS)]
    for obs in (walk.steps.obs, walk.steps.final_obs):
        rows += [jax.tree.map(lambda leaf, at=at: leaf[at], obs) for at in np.ndindex(walk.last.shape)]
    assert all(space.contains(row) for row in rows)


def _roomier(box):
    """Tolerates environments that exceed a bound by a rounding error."""
    return gym.spaces.Box(box.low - 1e-5, box.high + 1e-5, dtype=box.dtype) if box.dtype == np.float32 else box


def test_terminated_and_truncated_are_exclusive(walk):
    steps = walk.steps
    assert not (steps.terminated & steps.truncated).any()
    assert ended(steps).any() and not ended(steps)[~steps.valid].any()


def test_an_invalid_row_has_no_reward(walk):
    assert not walk.steps.reward[~walk.steps.valid].any()


def test_the_final_observation_differs_from_the_next_only_at_ends(walk):
    assert not (differs(walk.steps) & ~ended(walk.steps)).any()


def test_a_new_episode_follows_an_end(walk):
    """The next observation differs from the final one, unless an invalid row comes first."""
    moved, followed = differs(walk.steps)[:-1], walk.steps.valid[1:]
    for ends in (walk.steps.terminated, walk.steps.truncated & ~walk.last, walk.steps.truncated & walk.last):
        at = ends[:-1] & followed
        assert not at.any() or moved[at].any()


def test_a_last_step_ends_its_episode(case):
    walk = walked(case, cut=True)
    assert ended(walk.steps)[walk.last & walk.steps.valid].all()
    assert walk.steps.truncated[walk.last].any() or walk.steps.terminated.any(axis=1).all()


def test_metrics_equal_those_computed_from_the_steps(case, walk):
    expected, metrics = episodes_by_hand(walk.steps), walk.metrics
    assert metrics["episode_return"].count == metrics["episode_length"].count == len(expected)
    assert metrics["episode_length"].total == expected[:, 1].sum()
    if not any(wrapper.startswith(REWARD_WRAPPERS) for wrapper in case.wrappers):
        np.testing.assert_allclose(metrics["episode_return"].total, expected[:, 0].sum(), rtol=1e-5, atol=1e-4)


def test_reading_the_metrics_resets_them(walk):
    assert all(mean.total == 0 and mean.count == 0 for mean in walk.metrics_again.values())
    assert walk.metrics_again.keys() == walk.metrics.keys()


def test_the_walk_depends_on_the_key(case):
    walks = [walked(case, seed=seed, length=9) for seed in (1, 1, 2)]
    walks[1] = walked.__wrapped__(case, seed=1, length=9)
    seen = [jax.tree.leaves((walk.first, walk.steps)) for walk in walks]
    assert all(map(np.array_equal, seen[0], seen[1]))
    assert all(map(np.array_equal, seen[0], seen[2])) is not case.random


@pytest.mark.parametrize("case", JITTED, ids=str)
def test_a_jitted_step_is_the_same_step(case):
    env, eager = case.env(), walked(case, length=9)
    key_reset, key_env = jax.random.split(jax.random.key(1))
    (action, *_), (key, *_) = actions(env.action_space, range(NUM_ENVS), 1), jax.random.split(key_env, 9)
    with own_objects():
        state, first = jax.jit(env.reset)(key_reset)
        _, timestep = jax.block_until_ready(jax.jit(env.step)(state, jax.tree.map(jnp.asarray, action), key))
    seen = (eager.first, jax.tree.map(lambda leaf: leaf[0], eager.steps))
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5), seen, (first, timestep))


@pytest.mark.parametrize("case", BOUNDED, ids=str)
def test_actions_beyond_the_bounds_are_clipped(case, key):
    env, seen = case.env(), []
    high = np.broadcast_to(np.minimum(env.action_space.high, 3.0), (NUM_ENVS, *env.action_space.shape))
    beyond = np.where(np.isfinite(env.action_space.high), high + 100.0, high)
    for action in (high, beyond):
        with own_objects():
            state, _ = env.reset(key)
            seen.append(env.step(state, jnp.asarray(action, jnp.float32), key)[1])
    assert jax.tree.all(jax.tree.map(np.array_equal, *seen))
