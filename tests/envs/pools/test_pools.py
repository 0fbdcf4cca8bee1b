"""Properties of every kind of pool. A new kind of pool is one more entry in `KINDS`."""

import jax
import numpy as np
import pytest

from tests.envs import toy_envs
from tests.envs.random_walks import SEEDS, actions, make_factory, play, row_of, step_by_hand, trees_equal, walk

KINDS = {
    "inprocess": {"vector": "inprocess"},
    "workers": {"vector": "workers", "workers": 2},
    "sync": {"vector": "sync"},
    "sync-same": {"vector": "sync", "autoreset": "same_step"},
    "async": {"vector": "async"},
}
# In Gymnasium's same-step mode the last observation is lost if the environment overwrites its array.
UNSUPPORTED = (toy_envs.Reusing, KINDS["sync-same"])
LENGTH = 23


@pytest.fixture(params=KINDS)
def kind(request):
    return KINDS[request.param]


def pairs(makers=toy_envs.GOOD):
    """Parametrises a test with every environment in every kind of pool that supports it."""
    every = [(maker, name) for maker in makers for name in KINDS if (maker, KINDS[name]) != UNSUPPORTED]
    return pytest.mark.parametrize(("maker", "kind"), every, indirect=["kind"])


def finals(factory, row, length=LENGTH):
    """Returns the return and last observation that the environment reports, for every step that ends an episode."""
    steps = step_by_hand(factory, SEEDS[row], length)
    return {t: (info["total"], obs) for t, (obs, _, over, cut, info) in enumerate(steps) if over or cut}


def without_mask(factory, step, name):
    """Returns a field of a step without the action mask."""
    value = getattr(step, name)
    return value["observation"] if factory.constructor.masked else value


@pytest.mark.parametrize("maker", toy_envs.GOOD)
def test_all_kinds_produce_the_same_trajectories(maker):
    walks = [play(make_factory(maker, **options)) for options in KINDS.values() if (maker, options) != UNSUPPORTED]
    first, steps, totals = walks[0]
    for other_first, other_steps, other_totals in walks[1:]:
        assert trees_equal(other_first, first)
        assert all(trees_equal(vars(a), vars(b)) for a, b in zip(other_steps, steps, strict=True))
        assert trees_equal(vars(other_totals), vars(totals))


@pairs()
def test_rewards_and_ends_are_those_of_the_environment(maker, kind):
    factory = make_factory(maker, **kind)
    _, steps, _ = play(factory)
    for row, seed in enumerate(SEEDS):
        for step, (_, reward, over, cut, _) in zip(steps, step_by_hand(factory, seed, LENGTH), strict=True):
            assert step.reward[row] == np.float32(reward)
            assert step.terminated[row] == over and step.truncated[row] == (cut and not over)
            assert step.valid[row]


@pairs()
def test_the_final_observation_is_the_last_of_the_episode(maker, kind):
    factory = make_factory(maker, **kind)
    _, steps, _ = play(factory)
    for row in range(len(SEEDS)):
        ends = finals(factory, row)
        for t, step in enumerate(steps):
            final = jax.tree.map(lambda array, row=row: array[row], without_mask(factory, step, "final_obs"))
            if t in ends:
                assert jax.tree.all(jax.tree.map(np.array_equal, final, ends[t][1]))
            else:
                assert trees_equal(row_of(step, row)["final_obs"], row_of(step, row)["obs"])


@pairs()
def test_totals_equal_those_that_the_environments_report(maker, kind):
    factory = make_factory(maker, **kind)
    _, _, totals = play(factory)
    for row in range(len(SEEDS)):
        ends = finals(factory, row)
        np.testing.assert_allclose(totals.returns[row], sum(total for total, _ in ends.values()), rtol=1e-6)
        assert totals.finished[row] == len(ends) and totals.dropped[row] == 0
        assert totals.lengths[row] == max(ends, default=-1) + 1


def test_popping_totals_resets_them(kind):
    factory = make_factory(toy_envs.Terminating, **kind)
    pool = factory.make_pool(range(2), SEEDS[:2])
    walk(pool, factory.action_space, SEEDS[:2], 2 * toy_envs.LENGTH + 1)
    assert pool.pop_totals().finished.tolist() == [2, 2]
    assert pool.pop_totals().finished.tolist() == [0, 0]
    pool.close()


@pairs((toy_envs.Uneven, toy_envs.Nested, toy_envs.Reusing))
def test_a_row_depends_only_on_its_seed(maker, kind):
    factory = make_factory(maker, **kind)
    seeds = (5, 11, 6, 22, 7)
    _, together, _ = play(factory, seeds)
    for row, seed in enumerate(seeds):
        _, alone, _ = play(make_factory(maker, vector="inprocess"), (seed,))
        assert all(trees_equal(row_of(a, row), row_of(b, 0)) for a, b in zip(together, alone, strict=True))


@pairs((toy_envs.Truncating, toy_envs.Reusing, toy_envs.Nested))
def test_returned_arrays_never_change(maker, kind):
    factory = make_factory(maker, **kind)
    pool = factory.make_pool(range(2), SEEDS[:2])
    returned = [pool.reset()]
    copies = [jax.tree.map(np.copy, returned[0])]
    for action in actions(factory.action_space, SEEDS[:2], 12):
        returned.append(vars(pool.step(action, None)))
        copies.append(jax.tree.map(np.copy, returned[-1]))
    assert all(trees_equal(a, b) for a, b in zip(returned, copies, strict=True))
    pool.close()


def test_final_observations_are_not_copied_if_no_episode_ends(kind):
    factory = make_factory(toy_envs.Never, **kind)
    _, steps, _ = play(factory)
    assert all(step.final_obs is step.obs for step in steps)
    assert not any(step.terminated.any() or step.truncated.any() for step in steps)


def test_the_caller_can_truncate_an_episode(kind):
    factory = make_factory(toy_envs.Terminating, **kind)
    pool = factory.make_pool(range(3), SEEDS)
    first = pool.reset()
    given = actions(factory.action_space, SEEDS, toy_envs.LENGTH)
    pool.step(given[0], np.array([False, False, False]))
    step = pool.step(given[1], np.array([True, False, True]))
    assert step.truncated.tolist() == [True, False, True] and not step.terminated.any() and step.valid.all()
    assert step.final_obs[:, 1].tolist() == [2, 2, 2] and step.obs[:, 1].tolist() == [0, 2, 0]
    assert (step.final_obs[:, 0] == first[:, 0]).all() and step.obs[0, 0] != first[0, 0]
    assert pool.pop_totals().lengths.tolist() == [2, 0, 2]
    pool.close()


def test_termination_takes_precedence_over_truncation(kind):
    factory = make_factory(toy_envs.OneStep, **kind)
    pool = factory.make_pool(range(2), SEEDS[:2])
    pool.reset()
    step = pool.step(np.zeros(2, np.int32), np.ones(2, bool))
    assert step.terminated.all() and not step.truncated.any()
    pool.close()


@pytest.mark.parametrize("maker", [toy_envs.Masking, toy_envs.MaskingMany])
def test_a_mask_in_info_becomes_part_of_the_observation(maker, kind):
    factory = make_factory(maker, **kind)
    first, steps, _ = play(factory)
    assert set(factory.observation_space) == {"observation", "action_mask"}
    for obs in (first, *(step.obs for step in steps), *(step.final_obs for step in steps)):
        secret, time = obs["observation"].T.astype(int)
        expected = [np.ones_like(time), time % 2, secret % 2]
        if maker is toy_envs.MaskingMany:
            expected = [np.ones_like(time), time % 2, np.ones_like(time), np.zeros_like(time), secret % 2]
        np.testing.assert_array_equal(obs["action_mask"], np.stack(expected, axis=1))


def test_64_bit_observations_become_32_bit(kind):
    first, steps, totals = play(make_factory(toy_envs.Wide, **kind))
    assert first.dtype == steps[0].obs.dtype == steps[0].reward.dtype == np.float32
    assert all(sums.dtype == np.float32 for sums in vars(totals).values())


def test_closing_twice_is_harmless(kind):
    pool = make_factory(toy_envs.Terminating, **kind).make_pool(range(2), SEEDS[:2])
    pool.reset()
    pool.close()
    pool.close()
    make_factory(toy_envs.Terminating, **kind).make_pool(range(2), SEEDS[:2]).close()
