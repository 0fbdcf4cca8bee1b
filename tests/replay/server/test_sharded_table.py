"""A table over several servers is sampled like a single table."""

from contextlib import ExitStack, contextmanager

import numpy as np
import pytest
from scipy import stats

from tests.replay.server.serving import SIGNATURE, steps, table
from weft.errors import WeftError
from weft.replay.limiter import MinimumSize
from weft.replay.selectors import Fifo, Prioritised
from weft.replay.server import Server, connect
from weft.replay.store import Store
from weft.replay.table import Table


@contextmanager
def sharded_over(*tables, seed=0):
    """A client of one server per table, and the sharded table over them."""
    with ExitStack() as stack:
        servers = [stack.enter_context(Server([each], token="t" * 20)) for each in tables]
        client = stack.enter_context(connect([server.address for server in servers], "t" * 20))
        yield client, client.table(tables[0].name, seed=seed)


def priorities(n):
    return np.random.default_rng(1).gamma(0.7, size=n) * 10


def fill(sharded, counts):
    """Inserts batches of these sizes with the rewards 0, 1, ...; returns the keys and the priorities."""
    values, keys, start = priorities(sum(counts)), [], 0
    for count in counts:
        keys.append(sharded.insert(steps(count, start), values[start : start + count]))
        start += count
    return np.concatenate(keys), values


@pytest.mark.parametrize("exponent", [0.0, 0.6, 1.0])
def test_frequencies_and_probabilities_equal_those_of_a_single_table(exponent):
    single = table(sampler=Prioritised(exponent))
    with sharded_over(*[table(sampler=Prioritised(exponent), seed=seed) for seed in range(3)]) as (_, sharded):
        keys, values = fill(sharded, [5, 40, 2, 1, 20, 12])
        single.insert(steps(80), values)
        expected = values**exponent / (values**exponent).sum()
        sample = sharded.sample(40_000)
        items = sample.data["reward"].astype(int)
        np.testing.assert_allclose(sample.info.probability, expected[items], rtol=1e-12)
        np.testing.assert_array_equal(sample.info.key, keys[items])
        np.testing.assert_array_equal(sample.info.priority, values[items])
        assert sample.info.table_size == 80 == sharded.size
        reference = single.sample(40_000)
        reference_items = reference.data["reward"].astype(int)
        np.testing.assert_allclose(reference.info.probability, expected[reference_items], rtol=1e-12)
        assert match(items, expected) and match(reference_items, expected)


def match(items, probabilities):
    """A chi-square test of the items' frequencies. Rare items are counted together."""
    rare = probabilities * len(items) < 10
    observed, expected = np.bincount(items, minlength=len(probabilities)), probabilities * len(items)
    if rare.any():
        observed = np.append(observed[~rare], observed[rare].sum())
        expected = np.append(expected[~rare], expected[rare].sum())
    return stats.chisquare(observed, expected).pvalue > 1e-4


def test_the_items_of_a_sample_are_not_ordered_by_server():
    with sharded_over(*[table(seed=seed) for seed in range(2)]) as (_, sharded):
        sharded.insert(steps(10))
        sharded.insert(steps(10))
        origins = (sharded.sample(1000).info.key >> np.uint64(56)).astype(int)
        assert abs(np.corrcoef(origins[:-1], origins[1:])[0, 1]) < 0.15


def test_updates_and_deletions_go_to_the_server_of_the_key():
    with sharded_over(*[table(sampler=Prioritised(1.0)) for _ in range(3)]) as (_, sharded):
        keys, _ = fill(sharded, [10, 10, 10])
        order = np.random.default_rng(0).permutation(30)
        assert sharded.update(keys[order], np.arange(30.0)[order]) == 30
        found = sharded.items(keys)
        assert dict(zip(found.key.tolist(), found.priority.tolist(), strict=True)) == dict(
            zip(keys.tolist(), map(float, range(30)), strict=True)
        )
        sample = sharded.sample(500)
        np.testing.assert_allclose(sample.info.probability, sample.data["reward"] / np.arange(30).sum())
        assert sharded.delete(keys[::2]) == 15 and sharded.delete(keys[::2]) == 0 and sharded.size == 15
        assert sharded.update(np.array([np.uint64(9) << np.uint64(56)]), [1.0]) == 0
        assert sharded.info()["deleted"] == 15 and len(sharded.items().key) == 15
        sharded.reset()
        assert sharded.size == 0


def test_all_items_are_equally_probable_if_all_priorities_are_zero():
    with sharded_over(*[table(sampler=Prioritised(1.0)) for _ in range(2)]) as (_, sharded):
        sharded.insert(steps(3), np.zeros(3))
        sharded.insert(steps(1), np.zeros(1))
        assert set(sharded.sample(200).info.probability.tolist()) == {0.25}
        sharded.insert(steps(1), np.ones(1))
        assert set(sharded.sample(50).info.probability.tolist()) == {1.0}


def test_samples_with_the_same_seed_are_equal():
    with sharded_over(*[table() for _ in range(2)]) as (_, sharded):
        fill(sharded, [20, 20])
        first, second = sharded.sample(50, seed=4), sharded.sample(50, seed=4)
        assert (first.info.key == second.info.key).all()
        samples = sharded.samples(8, ahead=2)
        assert len({tuple(next(samples).info.key.tolist()) for _ in range(5)}) > 1
        samples.close()


def test_rows_are_distributed_over_the_servers():
    def shard():
        return Table(store=Store(SIGNATURE, capacity=40, rows=2), capacity=30, length=2, name="a")

    with sharded_over(shard(), shard()) as (_, sharded):
        for row in range(4):
            _, keys = sharded.append(steps(2, 10 * row), rows=[row, row], last=[1], length=[2])
            assert keys >> np.uint64(56) == row % 2
        rewards = sharded.sample(100).data["reward"]
        assert {tuple(pair) for pair in rewards.tolist()} == {(10.0 * row, 10.0 * row + 1) for row in range(4)}
        with pytest.raises(WeftError, match="rows of one server at a time"):
            sharded.append(steps(2), rows=[0, 1])


def test_a_table_that_cannot_be_sampled_over_servers_says_why():
    with sharded_over(table(sampler=Fifo()), table(sampler=Fifo())) as (client, sharded):
        with pytest.raises(
            WeftError, match="table 'a' samples by Fifo, which has no weights: .* such as Uniform and Prioritised"
        ):
            sharded.sample(1)
        sharded.limiter = MinimumSize(7)
        assert sharded.limiter == MinimumSize(7)
        client.ping()
    with (
        sharded_over(table(), table()) as (_, sharded),
        pytest.raises(WeftError, match="waited 0.1 s: it has no items on any server"),
    ):
        sharded.sample(1, timeout=0.1)
