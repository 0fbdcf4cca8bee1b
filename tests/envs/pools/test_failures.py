"""Failing environments: error messages, dropped episodes, restarts, and the clean-up of worker processes."""

import gc
import os
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest

from tests.envs import toy_envs
from tests.envs.random_walks import SEEDS, actions, make_factory
from weft.envs.pools.failures import EnvFailed
from weft.errors import WeftError

KINDS = {"inprocess": {"vector": "inprocess"}, "workers": {"vector": "workers", "workers": 2, "timeout": 0.5}}
AT = 3
REASONS = {
    toy_envs.Raising: "ValueError: out of paint",
    toy_envs.Leaving: "SystemExit: 3",
    toy_envs.NaNObservation: "NaN in the observation",
    toy_envs.NaNReward: "the reward is NaN",
    toy_envs.NaNAtTheEnd: "NaN in the observation or the reward",
    toy_envs.WrongShape: r"the observation has the shape \(1,\), not \(2,\)",
    toy_envs.WrongStructure: r"the observation is a dict of 'obs', not numbers of shape \(2,\)",
    toy_envs.TooFew: r"ValueError: not enough values to unpack \(expected 5, got 4\)",
    toy_envs.NoReward: "the reward is None, not a number",
}
DEADLY = {
    toy_envs.Dying: "its worker process was killed by SIGKILL",
    toy_envs.Hanging: "it did not respond within 0.5 seconds, and its worker process was killed",
}
INDICES = (40, 41, 42)


@pytest.fixture(params=KINDS)
def kind(request):
    return KINDS[request.param]


@pytest.fixture
def opened():
    """Starts pools and closes them after the test."""
    pools = []

    def start(factory, seeds=SEEDS):
        pools.append(factory.make_pool(INDICES[: len(seeds)], seeds))
        pools[-1].reset()
        return pools[-1]

    yield start
    for pool in pools:
        pool.close()


def secrets_odd(seed):
    """Returns whether the first secret of a seed is odd: with `odd_only`, only such environments fail."""
    env = toy_envs.Counting()
    env.reset(seed=seed)
    return bool(env.secret % 2)


def seeds_with_one_odd():
    """Returns three seeds; with `odd_only`, only the environment of the second one fails."""
    even = [seed for seed in range(100) if not secrets_odd(seed)]
    odd = next(seed for seed in range(100) if secrets_odd(seed))
    return even[0], odd, even[1]


def step_until(pool, space, seeds, length):
    return [pool.step(action, None) for action in actions(space, seeds, length)]


@pytest.mark.parametrize("maker", REASONS)
def test_a_failure_names_the_environment_and_the_cause(maker, kind, opened):
    factory = make_factory(maker, at=AT, odd_only=True, **kind)
    seeds = seeds_with_one_odd()
    pool = opened(factory, seeds)
    step_until(pool, factory.action_space, seeds, AT - 1)
    where = rf"{maker.__name__}: environment 41 \(seed {seeds[1]}\) failed at its step 3 \(3 of the episode\): "
    with pytest.raises(EnvFailed, match=where + f".*{REASONS[maker]}") as caught:
        step_until(pool, factory.action_space, seeds, 1)
    assert "\n" not in str(caught.value)
    if maker is toy_envs.Raising:
        assert isinstance(caught.value.__cause__, ValueError) and str(caught.value.__cause__) == "out of paint"


@pytest.mark.parametrize("maker", DEADLY)
def test_a_lost_worker_names_the_environment_and_the_cause(maker, opened):
    factory = make_factory(maker, at=AT, odd_only=True, **KINDS["workers"])
    seeds = seeds_with_one_odd()
    pool = opened(factory, seeds)
    step_until(pool, factory.action_space, seeds, AT - 1)
    where = rf"environment 41 \(seed {seeds[1]}\) failed at its step 3 \(3 of the episode\): "
    with pytest.raises(EnvFailed, match=where + DEADLY[maker]):
        step_until(pool, factory.action_space, seeds, 1)
    assert not pool.pids


@pytest.mark.parametrize("maker", REASONS)
def test_a_restart_drops_one_episode_and_does_not_affect_other_rows(maker, kind, opened):
    seeds = seeds_with_one_odd()
    factory = make_factory(maker, at=AT, odd_only=True, on_error="restart", **kind)
    reference = make_factory(toy_envs.Never, **kind)
    pool, twin = opened(factory, seeds), opened(reference, seeds)
    steps = step_until(pool, factory.action_space, seeds, AT + 2)
    expected = step_until(twin, factory.action_space, seeds, AT + 2)
    for step, other in zip(steps, expected, strict=True):
        for row in (0, 2):
            assert (step.obs[row] == other.obs[row]).all() and step.reward[row] == other.reward[row]
    failing = steps[AT - 1]
    assert failing.valid.tolist() == [True, False, True]
    assert failing.truncated.tolist() == [False, True, False] and not failing.terminated.any()
    assert failing.reward[1] == 0 and failing.obs[1, 1] == 0
    assert (failing.final_obs[1] == steps[AT - 2].obs[1]).all()
    assert (failing.final_obs[[0, 2]] == failing.obs[[0, 2]]).all()
    assert steps[AT].obs[1, 1] == 1 and steps[AT].valid.all()
    totals = pool.pop_totals()
    assert totals.dropped.tolist() == [0, 1, 0] and totals.finished.sum() == 0


@pytest.mark.parametrize("maker", DEADLY)
def test_a_lost_worker_drops_the_episodes_of_its_block_only(maker, opened):
    seeds = seeds_with_one_odd()
    factory = make_factory(maker, at=AT, odd_only=True, on_error="restart", **KINDS["workers"])
    pool = opened(factory, seeds)
    assert len(pool.pids) == 2
    steps = step_until(pool, factory.action_space, seeds, AT)
    lost = ~steps[-1].valid
    assert lost.tolist() == [False, True, True]
    assert steps[-1].truncated.tolist() == lost.tolist() and not steps[-1].reward[lost].any()
    assert (steps[-1].final_obs[lost] == steps[-2].obs[lost]).all()
    assert steps[-1].obs[:, 1].tolist() == [AT, 0, 0]
    assert pool.pop_totals().dropped.tolist() == [0, 1, 1]


def test_a_restarted_environment_gets_the_same_seed_in_every_kind_of_pool(opened):
    seeds = seeds_with_one_odd()
    found = []
    for options in KINDS.values():
        factory = make_factory(toy_envs.Raising, at=AT, odd_only=True, on_error="restart", **options)
        pool = opened(factory, seeds)
        found.append(np.stack([step.obs for step in step_until(pool, factory.action_space, seeds, 9)]))
    assert (found[0] == found[1]).all()


def test_consecutive_restarts_are_limited(kind, opened):
    factory = make_factory(toy_envs.Raising, at=1, on_error="restart", **kind)
    pool = opened(factory, (1,))
    step_until(pool, factory.action_space, (1,), 3)
    with pytest.raises(EnvFailed, match="out of paint"):
        step_until(pool, factory.action_space, (1,), 1)
    assert pool.pop_totals().dropped.tolist() == [3]


def test_restarts_after_good_steps_are_not_limited(kind, opened):
    factory = make_factory(toy_envs.Raising, at=2, on_error="restart", **kind)
    pool = opened(factory, (1,))
    step_until(pool, factory.action_space, (1,), 20)
    assert pool.pop_totals().dropped.tolist() == [10]


def test_consecutive_restarts_of_a_worker_are_limited(opened):
    factory = make_factory(toy_envs.Dying, at=1, on_error="restart", **KINDS["workers"])
    pool = opened(factory, (1,))
    step_until(pool, factory.action_space, (1,), 3)
    with pytest.raises(EnvFailed, match="SIGKILL"):
        step_until(pool, factory.action_space, (1,), 1)


def test_a_failed_construction_names_the_environment():
    toy_envs.NotMade.made = 0
    factory = make_factory(toy_envs.NotMade, vector="inprocess")
    with pytest.raises(EnvFailed, match=r"environment 40 \(seed 11\) failed before its first step: .*no licence left"):
        factory.make_pool(INDICES, SEEDS).reset()


def test_a_failed_reset_names_the_environment(kind, opened):
    factory = make_factory(toy_envs.BadReset, **kind)
    pool = opened(factory)
    with pytest.raises(EnvFailed, match="environment 40 .* at its step 5 .*RuntimeError: stuck"):
        step_until(pool, factory.action_space, SEEDS, toy_envs.LENGTH)


def test_a_finished_episode_counts_even_if_the_next_reset_fails(kind, opened):
    factory = make_factory(toy_envs.BadReset, on_error="restart", **kind)
    pool = opened(factory)
    steps = step_until(pool, factory.action_space, SEEDS, toy_envs.LENGTH)
    assert steps[-1].terminated.all() and steps[-1].valid.all()
    totals = pool.pop_totals()
    assert totals.finished.tolist() == [1, 1, 1] and totals.dropped.tolist() == [0, 0, 0]


def test_a_float_observation_in_an_integer_space_is_rejected():
    factory = make_factory(toy_envs.FloatImage, vector="inprocess")
    with pytest.raises(EnvFailed, match="the observation is float32, which cannot become uint8"):
        factory.make_pool(INDICES, SEEDS).reset()


def test_an_environment_that_cannot_be_made_fails_before_the_run():
    def broken():
        raise OSError("no display")

    with pytest.raises(EnvFailed, match="broken cannot be made: OSError: no display"):
        make_factory(broken)
    with pytest.raises(WeftError, match="which is not a gymnasium.Env"):
        make_factory(lambda: 3)


def test_an_environment_that_cannot_be_pickled_is_rejected_with_advice():
    lock = __import__("threading").Lock()

    def locked():
        assert lock
        return toy_envs.Counting()

    with pytest.raises(WeftError, match="cannot be sent to worker processes: .*; use vector=inprocess"):
        make_factory(locked, vector="workers").make_pool(INDICES, SEEDS)


class NotUnpicklable:
    """Makes environments, but its pickle cannot be loaded."""

    def __call__(self):
        return toy_envs.Counting()

    def __reduce__(self):
        return int, ("no number",)


def test_an_error_while_a_worker_starts_is_reported():
    factory = make_factory(NotUnpicklable(), **KINDS["workers"])
    with pytest.raises(EnvFailed, match="before its first step: its worker process could not start: ValueError"):
        factory.make_pool(INDICES, SEEDS).reset()


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone_soon(pids, seconds=8.0):
    deadline = time.monotonic() + seconds
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(map(alive, pids))


def open_files():
    return len(os.listdir("/proc/self/fd"))


def shared_memory():
    """The shared memory that this process has mapped. Other processes that run tests have their own."""
    with open("/proc/self/maps") as maps:
        return {line.split()[-1] for line in maps if "/dev/shm/" in line}


def test_closing_ends_processes_and_frees_files_and_memory():
    factory = make_factory(toy_envs.Terminating, **KINDS["workers"])
    before, shared = open_files(), shared_memory()
    pool = factory.make_pool(INDICES, SEEDS)
    pool.reset()
    pids = pool.pids
    assert all(map(alive, pids)) and open_files() > before
    pool.close()
    # A zombie would still have an entry in /proc.
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)
    assert open_files() == before and shared_memory() == shared
    with pytest.raises(WeftError, match="closed"):
        pool.step(np.zeros(3, np.int32), None)


def test_garbage_collection_closes_a_pool():
    before = open_files()
    pool = make_factory(toy_envs.Terminating, **KINDS["workers"]).make_pool(INDICES, SEEDS)
    pool.reset()
    pids = pool.pids
    del pool
    gc.collect()
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids) and open_files() == before


def test_an_interrupt_ends_the_workers(opened, monkeypatch):
    factory = make_factory(toy_envs.Terminating, **KINDS["workers"])
    pool = opened(factory)
    pids = pool.pids

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(pool, "_wait_for_step", interrupt)
    with pytest.raises(KeyboardInterrupt):
        step_until(pool, factory.action_space, SEEDS, 1)
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)


PARENT = """
    import sys, time
    import numpy as np
    from tests.envs import toy_envs
    from tests.envs.random_walks import make_factory

    pool = make_factory(toy_envs.{maker}, at=2, vector="workers", workers=2).make_pool(range(2), [1, 2])
    pool.reset()
    print(*pool.pids, flush=True)
    action = np.zeros(2, np.int32)
    pool.step(action, None)
    pool.step(action, None)
"""


@pytest.mark.parametrize(("maker", "end"), [("Hanging", signal.SIGKILL), ("Hanging", signal.SIGINT)])
def test_workers_exit_with_their_parent_even_during_a_step(maker, end):
    command = [sys.executable, "-c", textwrap.dedent(PARENT.format(maker=maker))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 2
        time.sleep(0.3)
        assert all(map(alive, pids))
        parent.send_signal(end)
        parent.wait(20)
    assert gone_soon(pids)


def test_a_worker_imports_neither_weft_nor_jax():
    pool = make_factory(toy_envs.Modules, vector="workers", workers=1).make_pool(range(1), [1])
    assert pool.reset().tolist() == [[0, 0]]
    pool.close()
