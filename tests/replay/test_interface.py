"""Device and host replay, compared with a model in plain Python."""

from typing import Any

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from weft.errors import WeftError
from weft.host import own_objects
from weft.replay.device import DeviceReplay, find_leaf, set_leaves
from weft.replay.host import HostReplay
from weft.replay.interface import Replay, TableSpec

KINDS = {"device": DeviceReplay, "host": HostReplay}
PRIORITIES = st.floats(0.125, 8.0, width=32)
EXPONENTS = {"uniform": 0.0, "prioritised:0.5": 0.5, "prioritised:1": 1.0}


class Model:
    """A model table: rows of steps as (number, priority), and the weights of their items."""

    def __init__(self, spec: TableSpec) -> None:
        self.spec = spec
        self.rows: list[list[tuple[float, float]]] = [[] for _ in range(spec.rows)]
        self.changed: dict[tuple[float, ...], float] = {}
        self.highest = 1.0

    def insert(self, numbers: np.ndarray, priorities: np.ndarray | None) -> None:
        given = np.full(numbers.shape, self.highest) if priorities is None else priorities
        for t, b in np.ndindex(*numbers.shape):
            self.rows[b].append((float(numbers[t, b]), float(given[t, b])))
        self.highest = max(self.highest, given.max())

    def items(self) -> dict[tuple[float, ...], float]:
        """The steps of every item, with its priority."""
        spec, found = self.spec, {}
        for row in self.rows:
            for first in range(max(0, len(row) - spec.steps_per_row), len(row) - spec.length + 1):
                if first % spec.period == 0:
                    steps = row[first : first + spec.length]
                    numbers, own = tuple(n for n, _ in steps), [p for _, p in steps]
                    mixed = spec.mix * max(own) + (1 - spec.mix) * sum(own) / len(own)
                    found[numbers] = self.changed.get(numbers, mixed)
        return found

    def probabilities(self) -> dict[tuple[float, ...], float]:
        weights = {item: p ** EXPONENTS[self.spec.sampler] for item, p in self.items().items()}
        total = sum(weights.values())
        return {item: weight / total for item, weight in weights.items()}


@st.composite
def histories(draw: Any) -> tuple[TableSpec, list[Any]]:
    rows, length, period = draw(st.integers(1, 3)), draw(st.integers(1, 4)), draw(st.integers(1, 3))
    steps_per_row = draw(st.integers(length + 3, 12))
    spec = TableSpec(
        capacity=rows * steps_per_row + draw(st.integers(0, rows - 1)),
        rows=rows,
        length=length,
        period=period,
        sampler=draw(st.sampled_from(["uniform", "prioritised:0.5", "prioritised:1"])),
        mix=draw(st.sampled_from([0.0, 0.9, 1.0])),
    )
    known = draw(st.booleans()) and spec.sampler != "uniform"
    pieces = []
    for _ in range(draw(st.integers(1, 6))):
        count = draw(st.integers(1, 4))
        shape = st.lists(PRIORITIES, min_size=count * rows, max_size=count * rows)
        pieces.append((count, np.array(draw(shape), np.float32).reshape(count, rows) if known else None))
    return spec, pieces


def inserted(table: Replay, pieces: list[Any]) -> tuple[Any, Model]:
    """A table and its model after several inserts; each step has a unique number."""
    spec, model = table.spec, Model(table.spec)
    state, next_number = table.init(jnp.zeros((spec.rows, 1)), jax.random.key(1)), 1
    for count, priorities in pieces:
        numbers = np.arange(next_number, next_number + count * spec.rows, dtype=np.float32).reshape(count, spec.rows)
        next_number += count * spec.rows
        model.insert(numbers, priorities)
        given = None if priorities is None else jnp.asarray(priorities)
        state = table.insert(state, jnp.arange(spec.rows, dtype=jnp.int32), jnp.asarray(numbers)[..., None], given)
    return state, model


def check(table: Replay, state: Any, model: Model, key: jax.Array) -> Any:
    """Sample a batch and check its items and probabilities against the model."""
    expected = model.probabilities()
    state, batch = table.sample(state, key, (64,))
    items = [tuple(column) for column in np.asarray(batch.steps)[..., 0].T.tolist()]
    assert set(items) <= set(expected)
    np.testing.assert_allclose(batch.probability, [expected[item] for item in items], rtol=2e-5)
    assert batch.size == len(expected)
    return state, batch, items


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25)
@given(history=histories(), changes=st.lists(PRIORITIES, min_size=64, max_size=64))
def test_samples_and_probabilities_match_the_model(kind: str, history: Any, changes: list[float]) -> None:
    spec, pieces = history
    table = KINDS[kind](spec)
    with own_objects():
        state, model = inserted(table, pieces)
        if not model.items():
            return
        state, batch, items = check(table, state, model, jax.random.key(2))
        if spec.sampler != "uniform":
            # An item drawn twice gets the same priority twice: the order of two updates to one item is undefined.
            model.changed |= dict(zip(items, changes, strict=True))
            priority = jnp.array([model.changed[item] for item in items], jnp.float32)
            state = table.update(state, batch.key, priority)
            check(table, state, model, jax.random.key(3))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sampler", ["uniform", "prioritised:1"])
def test_sampling_frequencies_match_the_probabilities(kind: str, sampler: str) -> None:
    spec = TableSpec(capacity=16, rows=2, length=2, sampler=sampler)
    priorities = np.array([[1, 2], [3, 4], [5, 6], [7, 8]], np.float32) if sampler != "uniform" else None
    table = KINDS[kind](spec)
    with own_objects():
        state, model = inserted(table, [(4, priorities)])
        _, batch = table.sample(state, jax.random.key(0), (100, 200))
    assert batch.steps.shape == (2, 100, 200, 1)
    drawn = [tuple(column) for column in np.asarray(batch.flattened.steps)[..., 0].T.tolist()]
    for item, probability in model.probabilities().items():
        deviation = (probability * (1 - probability) / len(drawn)) ** 0.5
        assert abs(drawn.count(item) / len(drawn) - probability) < 5 * deviation


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_key_draws_the_same_batch(kind: str) -> None:
    table = KINDS[kind](TableSpec(capacity=100, rows=2, sampler="prioritised:0.6"))
    batches = []
    for _ in range(2):
        with own_objects():
            state, _ = inserted(table, [(4, None), (4, None)])
            batches.append(table.sample(state, jax.random.key(5), (4, 8))[1])
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), *batches))


def test_a_table_that_is_too_small_is_rejected() -> None:
    with pytest.raises(WeftError, match="capacity=10 is 2 steps for each of 5 .* 3 steps: give at least capacity=15"):
        TableSpec(capacity=10, rows=5, length=3)
    table = DeviceReplay(TableSpec(capacity=8, rows=2, length=2))
    with pytest.raises(WeftError, match="insert of 4 steps per environment into a table that holds 4"):
        table.insert(table.init(jnp.zeros(2), jax.random.key(0)), jnp.arange(2), jnp.zeros((4, 2)), None)


def test_a_device_table_rejects_samplers_that_it_cannot_compile() -> None:
    with pytest.raises(WeftError, match="'uniform' or 'prioritised:exponent'; given 'fifo'"):
        DeviceReplay(TableSpec(capacity=8, rows=2, sampler="fifo"))


def test_sampling_an_empty_host_table_raises_an_error() -> None:
    table = HostReplay(TableSpec(capacity=8, rows=2))
    with own_objects(), pytest.raises(Exception, match="used before anything was inserted: insert steps first"):
        jax.block_until_ready(table.sample(table.init(jnp.zeros(2), jax.random.key(0)), jax.random.key(0), (4,)))


@given(weights=st.lists(st.sampled_from([0.0, 0.5, 1.0, 3.0]), min_size=8, max_size=8), seed=st.integers(0, 99))
@settings(max_examples=50)
def test_a_leaf_of_weight_zero_is_never_drawn(weights: list[float], seed: int) -> None:
    if not any(weights):
        return
    tree = set_leaves(jnp.zeros((1, 16)), jnp.zeros(8, jnp.int32), jnp.arange(8), jnp.array(weights))
    assert tree[0, 1] == sum(weights)
    mass = jnp.concatenate([jax.random.uniform(jax.random.key(seed), (30,)) * sum(weights), jnp.cumsum(tree[0, 8:])])
    slots, found = find_leaf(tree, jnp.zeros(len(mass), jnp.int32), mass)
    assert (found > 0).all() and found.tolist() == [weights[slot] for slot in slots.tolist()]
