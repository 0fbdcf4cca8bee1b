"""A table over several servers is sampled as one table would be."""

from contextlib import ExitStack, contextmanager

import numpy as np
import pytest
from scipy import stats

from tests.replay.server.serving import SIGNATURE, steps, table
from weft.errors import WeftError
from weft.replay.limiter import MinimumSize
from weft.replay.selectors import Fifo, Prioritised
from weft.replay.server.client import connect
from weft.replay.server.server import Server
from weft.replay.store import Store
from weft.replay.table import Table


@contextmanager
def spread(*tables, seed=0):
    """The tables on a server each, and one table over them."""
    with ExitStack() as stack:
        servers = [stack.enter_context(Server([each], token="t" * 20)) for each in tables]
        shards = stack.enter_context(connect([server.address for server in servers], "t" * 20))
        yield shards, shards.table(tables[0].name, seed=seed)


def priorities(n):
    return np.random.default_rng(1).gamma(0.7, size=n) * 10


def filled(sharded, counts):
    """Insert batches of these sizes; rewards 0, 1, ... tell the items apart."""
    values, keys, start = priorities(sum(counts)), [], 0
    for count in counts:
        keys.append(sharded.insert(steps(count, start), values[start : start + count]))
        start += count
    return np.concatenate(keys), values


@pytest.mark.parametrize("exponent", [0.0, 0.6, 1.0])
def test_frequencies_and_probabilities_are_those_of_a_single_table(exponent):
    single = table(sampler=Prioritised(exponent))
    with spread(*[table(sampler=Prioritised(exponent), seed=seed) for seed in range(3)]) as (_, sharded):
        keys, values = filled(sharded, [5, 40, 2, 1, 20, 12])
        single.insert(steps(80), values)
        expected = values**exponent / (values**exponent).sum()
        sample = sharded.sample(40_000)
        items = sample.data["reward"].astype(int)
        np.testing.assert_allclose(sample.info.probability, expected[items], rtol=1e-12)
        np.testing.assert_array_equal(sample.info.key, keys[items])
        np.testing.assert_array_equal(sample.info.priority, values[items])
        assert sample.info.table_size == 80 == sharded.size
        of_one = single.sample(40_000)
        np.testing.assert_allclose(of_one.info.probability, expected[of_one.data["reward"].astype(int)], rtol=1e-12)
        assert fits(items, expected) and fits(of_one.data["reward"].astype(int), expected)


def fits(items, expected):
    """A chi-square test of how often items came; those that come seldom are counted together."""
    seldom = expected * len(items) < 10
    seen, wanted = np.bincount(items, minlength=len(expected)), expected * len(items)
    if seldom.any():
        seen = np.append(seen[~seldom], seen[seldom].sum())
        wanted = np.append(wanted[~seldom], wanted[seldom].sum())
    return stats.chisquare(seen, wanted).pvalue > 1e-4


def test_items_of_a_sample_come_in_no_order_of_their_servers():
    with spread(*[table(seed=seed) for seed in range(2)]) as (_, sharded):
        sharded.insert(steps(10))
        sharded.insert(steps(10))
        origins = (sharded.sample(1000).info.key >> np.uint64(56)).astype(int)
        assert abs(np.corrcoef(origins[:-1], origins[1:])[0, 1]) < 0.15


def test_updates_and_deletions_find_the_server_of_a_key():
    with spread(*[table(sampler=Prioritised(1.0)) for _ in range(3)]) as (_, sharded):
        keys, _ = filled(sharded, [10, 10, 10])
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


def test_if_all_priorities_are_zero_all_items_are_alike():
    with spread(*[table(sampler=Prioritised(1.0)) for _ in range(2)]) as (_, sharded):
        sharded.insert(steps(3), np.zeros(3))
        sharded.insert(steps(1), np.zeros(1))
        assert set(sharded.sample(200).info.probability.tolist()) == {0.25}
        sharded.insert(steps(1), np.ones(1))
        assert set(sharded.sample(50).info.probability.tolist()) == {1.0}


def test_a_seed_decides_what_is_drawn():
    with spread(*[table() for _ in range(2)]) as (_, sharded):
        filled(sharded, [20, 20])
        first, again = sharded.sample(50, seed=4), sharded.sample(50, seed=4)
        assert (first.info.key == again.info.key).all()
        ahead = sharded.samples(8, ahead=2)
        assert len({tuple(next(ahead).info.key.tolist()) for _ in range(5)}) > 1
        ahead.close()


def test_rows_are_dealt_out_to_the_servers():
    def part():
        return Table(store=Store(SIGNATURE, capacity=40, rows=2), capacity=30, length=2, name="a")

    with spread(part(), part()) as (_, sharded):
        for row in range(4):
            _, keys = sharded.append(steps(2, 10 * row), rows=[row, row], last=[1], length=[2])
            assert keys >> np.uint64(56) == row % 2
        rewards = sharded.sample(100).data["reward"]
        assert {tuple(pair) for pair in rewards.tolist()} == {(10.0 * row, 10.0 * row + 1) for row in range(4)}
        with pytest.raises(WeftError, match="rows of one server at a time"):
            sharded.append(steps(2), rows=[0, 1])


def test_it_says_what_cannot_be():
    with spread(table(sampler=Fifo()), table(sampler=Fifo())) as (shards, sharded):
        with pytest.raises(WeftError, match="samples by Fifo, which has no weights: .* Uniform and Prioritised"):
            sharded.sample(1)
        sharded.limiter = MinimumSize(7)
        assert sharded.limiter == MinimumSize(7)
        shards.ping()
    with spread(table(), table()) as (_, sharded), pytest.raises(WeftError, match="waited 0.1 s: no server has items"):
        sharded.sample(1, timeout=0.1)
