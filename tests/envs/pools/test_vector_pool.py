"""Pools of vector environments: rows inserted by an autoreset, and unsupported operations."""

import numpy as np
import pytest

from tests.envs import toy_envs
from tests.envs.random_walks import SEEDS, actions, make_factory, play
from weft.envs.adapters import gymnasium as family
from weft.envs.pools.failures import EnvFailed
from weft.errors import WeftError

NEXT = [{"vector": "sync", "autoreset": "next_step"}, {"vector": "async", "autoreset": "next_step"}]
# Gymnasium warns of an error in a subprocess before it raises it.
ignore_warnings = pytest.mark.filterwarnings("ignore::UserWarning")


def next_step_rows(maker, seed, given):
    """Yields the expected observation, reward, flags and validity of one row for every action."""
    env = maker()
    env.reset(seed=seed)
    over = False
    for action in given:
        if over:
            obs, _ = env.reset()
            yield obs, 0.0, False, False, False
            over = False
        else:
            obs, reward, terminated, truncated, _ = env.step(int(action))
            over = terminated or truncated
            yield obs, reward, terminated, truncated and not terminated, True


@pytest.mark.parametrize(
    "maker", [toy_envs.Terminating, toy_envs.Truncating, toy_envs.Both, toy_envs.OneStep, toy_envs.Uneven]
)
@pytest.mark.parametrize("options", NEXT, ids=lambda options: options["vector"])
def test_the_row_after_an_end_belongs_to_no_episode(maker, options):
    factory = make_factory(maker, **options)
    _, steps, totals = play(factory)
    given = actions(factory.action_space, SEEDS, len(steps))
    for row, seed in enumerate(SEEDS):
        returns, finished, length, total = 0.0, 0, 0, 0.0
        expected = next_step_rows(maker, seed, [action[row] for action in given])
        for step, (obs, reward, terminated, truncated, valid) in zip(steps, expected, strict=True):
            assert (step.obs[row] == obs).all() and (step.final_obs[row] == obs).all()
            assert step.reward[row] == np.float32(reward) and step.valid[row] == valid
            assert (step.terminated[row], step.truncated[row]) == (terminated, truncated)
            total, length = total + reward, length + valid
            if terminated or truncated:
                returns, finished, total = returns + total, finished + 1, 0.0
                done = length
        np.testing.assert_allclose(totals.returns[row], returns, rtol=1e-6)
        assert totals.finished[row] == finished and totals.lengths[row] == done


@pytest.mark.parametrize("options", NEXT, ids=lambda options: options["vector"])
def test_a_truncated_row_restarts_in_the_same_step(options):
    factory = make_factory(toy_envs.Terminating, **options)
    pool = factory.make_pool(range(3), SEEDS)
    pool.reset()
    for _ in range(toy_envs.LENGTH - 1):
        pool.step(np.zeros(3, np.int32), None)
    step = pool.step(np.zeros(3, np.int32), np.array([True, False, False]))
    assert step.terminated.all()
    step = pool.step(np.zeros(3, np.int32), np.ones(3, bool))
    assert not step.valid.any() and not step.truncated.any()
    step = pool.step(np.zeros(3, np.int32), np.array([True, False, False]))
    assert step.truncated.tolist() == [True, False, False] and step.valid.all()
    assert step.obs[:, 1].tolist() == [0, 1, 1] and step.final_obs[:, 1].tolist() == [1, 1, 1]
    step = pool.step(np.zeros(3, np.int32), None)
    assert step.obs[:, 1].tolist() == [1, 2, 2] and step.valid.all()
    assert pool.pop_totals().lengths.tolist() == [toy_envs.LENGTH + 1, toy_envs.LENGTH, toy_envs.LENGTH]
    pool.close()


@ignore_warnings
@pytest.mark.parametrize("vector", ["sync", "async"])
def test_a_failure_names_the_environment(vector):
    factory = make_factory(toy_envs.Raising, at=2, vector=vector)
    pool = factory.make_pool(range(40, 43), SEEDS)
    pool.reset()
    pool.step(np.zeros(3, np.int32), None)
    # All rows fail in this step. One process reports the first row; several processes report any row.
    named = r"environment 40 \(seed 11\)" if vector == "sync" else r"environment 4\d \(seed \d\d\)"
    with pytest.raises(
        EnvFailed, match=rf"{named} failed at its step 2 \(2 of the episode\): ValueError: out of paint"
    ):
        pool.step(np.zeros(3, np.int32), None)
    pool.close()


@ignore_warnings
@pytest.mark.parametrize(
    ("maker", "reason"), [(toy_envs.Hanging, "TimeoutError"), (toy_envs.Dying, "EOFError|Connection")]
)
def test_a_process_that_hangs_or_dies_ends_the_pool(maker, reason):
    pool = make_factory(maker, at=1, vector="async", timeout=1.0).make_pool(range(1), [1])
    pool.reset()
    with pytest.raises(EnvFailed, match=rf"environment 0 \(seed 1\) failed at its step 1 .*({reason})"):
        pool.step(np.zeros(1, np.int32), None)
    pool.close()


@pytest.mark.parametrize("maker", [toy_envs.NaNObservation, toy_envs.NaNReward])
def test_nan_is_reported(maker):
    pool = make_factory(maker, at=2, vector="sync").make_pool(range(2), SEEDS[:2])
    pool.reset()
    pool.step(np.zeros(2, np.int32), None)
    with pytest.raises(EnvFailed, match=r"environment 0 \(seed 11\) failed at its step 2 .*NaN"):
        pool.step(np.zeros(2, np.int32), None)
    pool.close()


def test_a_registered_vector_environment_can_be_used():
    factory = family.make("CartPole-v1", 4, vector="native").pool_factory
    walks = [play(factory, length=80) for _ in range(2)]
    play.cache_clear()
    first, steps, totals = play(factory, length=80)
    assert (first == walks[0][0]).all() and totals.finished.sum() > 3
    for step, other in zip(steps, walks[0][1], strict=True):
        assert (step.obs == other.obs).all()
    for before, after in zip(steps[:-1], steps[1:], strict=True):
        assert (after.valid == ~(before.terminated | before.truncated)).all()
        assert (np.abs(after.obs[~after.valid]) <= 0.05).all() and not after.reward[~after.valid].any()


def test_unsupported_options_of_a_native_vector_environment_are_rejected():
    pool = family.make("CartPole-v1", 2, vector="native").pool_factory.make_pool(range(2), [1, 2])
    pool.reset()
    with pytest.raises(WeftError, match="cannot truncate an episode"):
        pool.step(np.zeros(2, np.int32), np.ones(2, bool))
    pool.close()
    with pytest.raises(WeftError, match="supports only autoreset=next_step, not disabled"):
        family.make("CartPole-v1", 2, vector="native", autoreset="disabled").pool_factory.make_pool(range(2), [1, 2])
    with pytest.raises(WeftError, match="has no vector environment"):
        family.make("Acrobot-v1", 2, vector="native").pool_factory.make_pool(range(2), [1, 2])
