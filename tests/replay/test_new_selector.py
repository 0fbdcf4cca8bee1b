"""A new selector takes one class and one registered name; everything else works with it unchanged."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from weft.host import own_objects
from weft.replay import Selector, Table, restore, save
from weft.replay.host import HostReplay
from weft.replay.interface import TableSpec
from weft.replay.limiter import LIMITERS, Limiter
from weft.replay.selectors import SELECTORS
from weft.replay.server import Server, connect
from weft.replay.server.declare import declare, parse_options

WORDS = ["capacity=8", "reward=float32", "sampler=weighted_top:2", "remover=weighted_top:1"]


class WeightedTop(Selector):
    """Draws among the `count` slots of highest priority, in proportion to their priorities."""

    def __init__(self, count: float = 3) -> None:
        self.count = int(count)

    def allocate(self, capacity: int) -> None:
        super().allocate(capacity)
        self.priority = np.full(capacity, -1.0)

    def insert(self, slots, priorities) -> None:
        self.priority[slots] = priorities

    def remove(self, slots) -> None:
        self.priority[slots] = -1

    def choose(self, n, rng):
        top = self._top()
        probabilities = self.priority[top] / self.total_weight()
        index = rng.choice(len(top), n, p=probabilities)
        return top[index], probabilities[index]

    def options(self):
        return {"count": self.count}

    def total_weight(self) -> float:
        return float(self.priority[self._top()].sum())

    def _top(self) -> np.ndarray:
        present = np.flatnonzero(self.priority >= 0)
        return present[np.argsort(-self.priority[present], kind="stable")][: self.count]


@pytest.fixture(autouse=True)
def register(monkeypatch):
    monkeypatch.setitem(SELECTORS, "weighted_top", WeightedTop)


def filled() -> Table:
    table = declare("a", parse_options(WORDS))
    table.insert({"reward": np.arange(6)}, priority=[1, 5, 2, 3, 4, 0])
    return table


def test_its_name_and_options_can_be_declared():
    table = declare("a", parse_options(WORDS))
    assert isinstance(table.sampler, WeightedTop) and table.sampler.count == 2
    assert isinstance(table.remover, WeightedTop) and table.remover.count == 1


def test_a_table_samples_removes_and_updates_with_it():
    table = filled()
    data, info = table.sample(100)
    assert set(data["reward"].tolist()) == {1.0, 4.0}
    np.testing.assert_allclose(info.probability, info.priority / 9)
    table.update(info.key[data["reward"] == 1.0][:1], [0.5])
    assert set(table.sample(100).data["reward"].tolist()) == {3.0, 4.0}
    table.insert({"reward": [6, 7, 8]}, priority=0.1)
    assert 4.0 not in table.store.read(table.items().start)["reward"]


def test_a_checkpoint_restores_it(tmp_path):
    table = filled()
    save(tmp_path / "saved", [table])
    restored = restore(tmp_path / "saved")["a"]
    assert isinstance(restored.sampler, WeightedTop) and restored.sampler.options() == {"count": 2}
    assert restored.sample(50).info.key.tolist() == table.sample(50).info.key.tolist()
    assert restored.insert({"reward": [6, 7, 8]}).tolist() == table.insert({"reward": [6, 7, 8]}).tolist()


def test_a_server_serves_it():
    with Server([filled()]) as server, connect(server.address, server.token) as client:
        remote = client.table("a")
        assert set(remote.sample(100).data["reward"].tolist()) == {1.0, 4.0}
        assert remote.mass() == (9.0, 6)


def test_several_servers_share_it():
    secret = "t" * 20
    with Server([filled()], token=secret) as one, Server([filled()], token=secret) as other:
        client = connect([one.address, other.address], secret)
        data, info = client.table("a", seed=0).sample(200)
        client.close()
    assert set(data["reward"].tolist()) == {1.0, 4.0}
    np.testing.assert_allclose(info.probability, info.priority / 18)


def test_an_algorithm_on_the_host_samples_with_it():
    table = HostReplay(TableSpec(capacity=12, rows=2, sampler="weighted_top:2"))
    rewards = jnp.arange(6.0).reshape(3, 2)
    with own_objects():
        state = table.init(jnp.zeros(2), jax.random.key(0))
        state = table.insert(state, jnp.arange(2, dtype=jnp.int32), rewards, rewards)
        _, batch = table.sample(state, jax.random.key(1), (64,))
        assert set(np.asarray(batch.steps).ravel().tolist()) == {4.0, 5.0}


def test_a_new_limiter_takes_one_function_and_one_name(monkeypatch, tmp_path):
    monkeypatch.setitem(LIMITERS, "alternating", lambda ahead: Limiter(1.0, 1, 0.0, ahead))
    table = declare("a", parse_options([*WORDS, "limiter=alternating:2"]))
    save(tmp_path / "saved", [table])
    assert restore(tmp_path / "saved")["a"].limiter == table.limiter == Limiter(1.0, 1, 0.0, 2.0)
    with Server([table]) as server, connect(server.address, server.token) as client:
        assert client.table("a").limiter == table.limiter
