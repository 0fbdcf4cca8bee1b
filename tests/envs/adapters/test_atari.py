import numpy as np
import pytest

from weft.envs.adapters import gymnasium as family
from weft.errors import WeftError

SEEDS = (3, 4, 5)
LENGTH = 260


def played(seeds=SEEDS, length=LENGTH, env_id="ALE/Breakout-v5", lasts=None, **settings):
    """Steps a pool with random actions, which depend on the row's seed. Returns the steps and the episode totals."""
    factory = family.make(env_id, len(seeds), **settings).pool_factory
    rngs = [np.random.default_rng(seed) for seed in seeds]
    pool = factory.make_pool(range(len(seeds)), seeds)
    first, steps = pool.reset(), []
    for t in range(length):
        action = np.array([rng.integers(factory.action_space.n) for rng in rngs], np.int32)
        steps.append(pool.step(action, None if lasts is None else lasts[t]))
    totals = pool.pop_totals()
    pool.close()
    return first, steps, totals


@pytest.fixture(scope="module")
def walk():
    return played()


def test_observations_are_four_small_grey_frames(walk):
    first, steps, _ = walk
    for obs in (first, steps[-1].obs, steps[-1].final_obs):
        assert obs.shape == (3, 4, 84, 84) and obs.dtype == np.uint8
    assert steps[-1].reward.dtype == np.float32


def test_an_end_returns_the_last_observation_and_the_first_of_the_next_episode(walk):
    first, steps, totals = walk
    ends = [(t, row) for t, step in enumerate(steps) for row in range(3) if step.terminated[row]]
    assert len(ends) == totals.finished.sum() > 0 and all(step.valid.all() for step in steps)
    for t, row in ends:
        assert (steps[t].obs[row] != steps[t].final_obs[row]).any()
        # The frames are stacked: all but the oldest of the last observation were seen in the one before.
        assert (steps[t].final_obs[row, :3] == steps[t - 1].obs[row, 1:]).all()


def test_a_row_depends_only_on_its_seed(walk):
    _, steps, _ = walk
    _, alone, _ = played((4,))
    assert all((one.obs[0] == many.obs[1]).all() for one, many in zip(alone, steps, strict=True))


def test_rewards_are_clipped_and_metrics_report_true_scores():
    _, steps, clipped = played((3, 4), 200, "ALE/MsPacman-v5", max_frames=600)
    _, raw_steps, raw = played((3, 4), 200, "ALE/MsPacman-v5", max_frames=600, clip_reward=False)
    assert {float(reward) for step in steps for reward in step.reward} <= {-1.0, 0.0, 1.0}
    assert max(step.reward.max() for step in raw_steps) >= 10
    assert (clipped.returns == raw.returns).all() and raw.returns.max() >= 10


def test_a_lost_life_terminates_for_learning_only(walk):
    _, steps, totals = walk
    _, lived, lived_totals = played(life_loss=True)
    ends = sum(int(step.terminated.sum()) for step in steps)
    lost = sum(int(step.terminated.sum()) for step in lived)
    assert lost > ends
    assert (lived_totals.finished == totals.finished).all() and (lived_totals.returns == totals.returns).all()
    for step, other in zip(steps, lived, strict=True):
        assert (step.obs == other.obs).all() and (other.terminated | ~step.terminated).all()
        only_lost = other.terminated & ~step.terminated
        assert (other.final_obs[only_lost] == other.obs[only_lost]).all()


def test_the_caller_can_truncate_an_episode():
    lasts = np.zeros((20, 2), bool)
    lasts[9, 1] = True
    _, steps, totals = played((3, 4), 20, lasts=lasts)
    assert steps[9].truncated.tolist() == [False, True] and not steps[9].terminated.any()
    assert (steps[9].final_obs[1] != steps[9].obs[1]).any() and (steps[9].final_obs[0] == steps[9].obs[0]).all()
    assert totals.lengths.tolist() == [0, 10] and totals.finished.tolist() == [0, 1]


def test_settings_change_the_game():
    assert family.make("ALE/Pong-v5", 1, full_action_space=True).action_space.n == 18
    _, steps, totals = played((1,), 60, max_frames=100)
    assert any(step.truncated.any() for step in steps) and totals.finished.sum() > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stickiness": 0.1}, "unknown option of gym:ALE/Pong-v5 'stickiness': did you mean 'sticky'"),
        ({"sticky": 1.5}, "sticky is 1.5: it must be a number from 0 to below 1"),
        ({"life_loss": 1}, "life_loss is 1: it must be true or false"),
        ({"frameskip": 0}, "frameskip is 0: it must be a whole number from 1"),
    ],
)
def test_an_invalid_option_is_rejected(options, message):
    with pytest.raises(WeftError, match=message):
        family.make("ALE/Pong-v5", 1, **options)


def test_an_unknown_game_is_rejected_with_a_suggestion():
    with pytest.raises(WeftError, match="did you mean 'ALE/Pong-v5'"):
        family.make("ALE/Pongg-v5", 1)


def test_environments_are_values_and_listed_once():
    assert family.make("ALE/Pong-v5", 2) == family.make("ALE/Pong-v5", 2)
    assert hash(family.make("ALE/Pong-v5", 2)) == hash(family.make("ALE/Pong-v5", 2))
    pongs = [env_id for env_id in family.available() if "Pong" in env_id]
    assert pongs == ["ALE/Pong-v5"]
