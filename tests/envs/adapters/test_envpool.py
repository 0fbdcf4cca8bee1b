import numpy as np
import pytest

from weft.envs.adapters import envpool as family
from weft.errors import WeftError

SEEDS = (3, 4, 5)
MODES = ("next_step", "same_step")


def played(env_id, seeds=SEEDS, length=120, last=None, **options):
    """Steps a pool with random actions, which depend on the row's seed. Returns the steps and the episode totals."""
    factory = family.make(env_id, len(seeds), **options).pool_factory
    space = factory.action_space
    rngs = [np.random.default_rng(seed) for seed in seeds]
    pool = factory.make_pool(range(len(seeds)), seeds)
    first, steps = pool.reset(), []
    for t in range(length):
        rows = [rng.integers(space.n) if hasattr(space, "n") else rng.normal(0, 2, space.shape) for rng in rngs]
        action = np.stack(rows).astype(np.int32 if hasattr(space, "n") else np.float32)
        steps.append(pool.step(action, last[t] if last is not None else None))
    totals = pool.pop_totals()
    pool.close()
    pool.close()
    return first, steps, totals


@pytest.mark.parametrize("mode", MODES)
def test_types_and_shapes(mode):
    first, steps, totals = played("CartPole-v1", autoreset=mode)
    assert first.shape == steps[0].obs.shape == (3, 4) and first.dtype == np.float32
    assert steps[0].reward.dtype == np.float32 and totals.finished.sum() > 3
    assert all(steps[0].__dict__[name].dtype == bool for name in ("terminated", "truncated", "valid"))


def test_the_row_after_an_end_belongs_to_no_episode():
    _, steps, totals = played("CartPole-v1")
    for before, after in zip(steps[:-1], steps[1:], strict=True):
        ended = before.terminated | before.truncated
        assert (after.valid == ~ended).all()
        assert (np.abs(after.obs[ended]) <= 0.05).all() and not after.reward[ended].any()
    assert all(step.final_obs is step.obs for step in steps)
    # CartPole rewards every step with one.
    assert (totals.returns == totals.lengths).all() and (totals.returns > 0).all()


def test_the_next_episode_can_begin_in_the_same_step():
    _, steps, totals = played("CartPole-v1", autoreset="same_step")
    assert all(step.valid.all() for step in steps)
    ends = [(t, row) for t, step in enumerate(steps) for row in range(3) if step.terminated[row]]
    assert len(ends) == totals.finished.sum() > 3
    for t, row in ends:
        assert (np.abs(steps[t].obs[row]) <= 0.05).all() and np.abs(steps[t].final_obs[row]).max() > 0.05
        # The environment goes on from there.
        if t + 1 < len(steps):
            assert steps[t + 1].reward[row] == 1 and not np.array_equal(steps[t + 1].obs[row], steps[t].obs[row])
            assert np.abs(steps[t + 1].obs[row, 0] - steps[t].obs[row, 0]) <= 0.01


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("env_id", ["CartPole-v1", "HalfCheetah-v4", "Pong-v5"])
def test_a_row_depends_only_on_its_seed(env_id, mode):
    length = 60 if env_id == "CartPole-v1" else 12
    _, steps, _ = played(env_id, length=length, autoreset=mode)
    _, alone, _ = played(env_id, (4,), length=length, autoreset=mode)
    assert all((one.obs[0] == many.obs[1]).all() for one, many in zip(alone, steps, strict=True))
    assert any((step.obs[0] != step.obs[2]).any() for step in steps)


@pytest.mark.parametrize("mode", MODES)
def test_the_caller_can_truncate_an_episode(mode):
    last = np.zeros((5, 3), bool)
    last[1, 1] = True
    first, steps, totals = played("CartPole-v1", length=5, last=last, autoreset=mode)
    step = steps[1]
    assert step.truncated.tolist() == [False, True, False] and step.valid.all()
    assert (np.abs(step.obs[1]) <= 0.05).all() and (step.final_obs[1] != step.obs[1]).any()
    assert steps[2].valid.all() and totals.lengths.tolist() == [0, 2, 0]


def test_the_time_limit_truncates():
    _, steps, totals = played("CartPole-v1", length=8, max_episode_steps=4)
    assert steps[3].truncated.all() and not steps[3].terminated.any() and not steps[4].valid.any()
    assert totals.lengths.tolist() == [4, 4, 4] and totals.finished.tolist() == [1, 1, 1]


def test_continuous_actions_are_clipped_and_observations_are_float32():
    _, steps, _ = played("HalfCheetah-v4", length=5)
    assert steps[0].obs.dtype == np.float32 and steps[0].obs.shape == (3, 17)


def test_nested_observations():
    first, steps, _ = played("FetchReach-v1", length=5)
    assert {name: part.dtype for name, part in steps[-1].obs.items()} == dict.fromkeys(first, np.float32)
    space = family.make("AcrobotSwingup-v1", 1).observation_space
    assert np.isneginf(space["velocity"].low).all() and np.isposinf(space["velocity"].high).all()


def test_atari_defaults_equal_those_of_the_atari_adapter():
    _, steps, totals = played("MsPacman-v5", (3, 4), 115, max_episode_steps=110)
    _, raw, raw_totals = played("MsPacman-v5", (3, 4), 115, max_episode_steps=110, clip_reward=False)
    assert {float(reward) for step in steps for reward in step.reward} <= {-1.0, 0.0, 1.0}
    assert max(step.reward.max() for step in raw) >= 10
    assert (totals.returns == raw_totals.returns).all() and totals.returns.max() >= 10


def test_a_lost_life_terminates_for_learning_only():
    _, steps, totals = played("Breakout-v5", (3, 4), 250)
    _, lived, lived_totals = played("Breakout-v5", (3, 4), 250, life_loss=True)
    ends, lost = (sum(int(step.terminated.sum()) for step in walk) for walk in (steps, lived))
    assert lost > ends and (lived_totals.finished == totals.finished).all()


@pytest.mark.parametrize(
    ("env_id", "options", "message"),
    [
        ("CartPol-v1", {}, "unknown envpool environment 'CartPol-v1': did you mean 'CartPole-v1'"),
        ("CartPole-v1", {"max_step": 3}, "unknown option of envpool:CartPole-v1 'max_step'"),
        ("CartPole-v1", {"seed": 3}, "unknown option of envpool:CartPole-v1 'seed'"),
        ("CartPole-v1", {"autoreset": "disabled"}, "it must be next_step or same_step"),
        ("Pong-v5", {"reward_clip": True}, "did you mean 'clip_reward'"),
        ("Pong-v5", {"clip_reward": 1}, "clip_reward is 1: it must be true or false"),
        ("Go9x9-v1", {}, "has 2 players"),
        ("CartPole-v1", {"max_episode_steps": "x"}, "envpool:CartPole-v1 cannot be made: TypeError"),
    ],
)
def test_environments_that_cannot_be_made_are_rejected(env_id, options, message):
    with pytest.raises(WeftError, match=message):
        family.make(env_id, 1, **options)


def test_environments_are_values():
    assert family.make("CartPole-v1", 2) == family.make("CartPole-v1", 2)
    assert hash(family.make("CartPole-v1", 2, max_episode_steps=3)) == hash(
        family.make("CartPole-v1", 2, max_episode_steps=3)
    )
    assert family.make("CartPole-v1", 2, max_episode_steps=3) != family.make("CartPole-v1", 2)
    assert len(family.available()) > 1000
