"""A replay table of JAX arrays, for programs that stay on the device.

Each environment has its own ring buffer and, for prioritised sampling, its own sum tree. So the table is divided along
the environments' axis, like the rest of the state, among replicas and devices. Prioritised sampling first draws an
environment in proportion to the roots of the trees, and then descends in its tree.

>>> import jax, jax.numpy as jnp
>>> from weft.replay.interface import TableSpec
>>> table = DeviceReplay(TableSpec(capacity=8, rows=2, length=2))
>>> state = table.init(jnp.zeros(2), jax.random.key(0))
>>> state = table.insert(state, jnp.arange(2), jnp.array([[1.0, 10.0], [2.0, 20.0]]), None)
>>> state, batch = table.sample(state, jax.random.key(0), (3,))
>>> batch.steps.shape, batch.probability.tolist()
((2, 3), [0.5, 0.5, 0.5])
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from weft.errors import WeftError
from weft.fragments import fragment, per_replica
from weft.replay.interface import Batch, TableSpec
from weft.replay.selectors import Prioritised, Uniform, parse_selector


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DeviceTable:
    """The state of a table: a ring buffer of `steps_per_row` steps for each of B environments."""

    steps: Any
    """Leaves [B, steps_per_row, ...]."""
    written: Int[Array, ""]
    """The number of steps inserted for each environment so far."""
    priority: Float[Array, "B steps_per_row"] | None
    """The priority of each step."""
    tree: Float[Array, "B nodes"] | None
    """Sum trees over the weights of items: node 1 is the root, node i has the children 2i and 2i + 1."""
    highest: Float[Array, " B"] | None
    """The highest priority so far, kept per environment so that it can be divided."""


@dataclass(frozen=True)
class DeviceReplay:
    """Replay with the table in the algorithm's state."""

    spec: TableSpec

    def __post_init__(self) -> None:
        if not isinstance(parse_selector(self.spec.sampler), Uniform | Prioritised):
            raise WeftError(
                f"a replay table on the device is sampled by 'uniform' or 'prioritised:exponent'; given "
                f"{self.spec.sampler!r}: put the table on the host (replay=host) to use other selectors"
            )

    def init(self, step: Any, key: jax.Array) -> DeviceTable:
        del key
        steps_per_row, prioritised = self.spec.steps_per_row, self._exponent is not None
        rows = jax.tree.leaves(step)[0].shape[0]
        steps = jax.tree.map(lambda x: jnp.zeros((rows, steps_per_row, *x.shape[1:]), x.dtype), step)
        return DeviceTable(
            steps,
            jnp.zeros((), jnp.int32),
            jnp.zeros((rows, steps_per_row), jnp.float32) if prioritised else None,
            jnp.zeros((rows, 2 * self._leaves), jnp.float32) if prioritised else None,
            jnp.ones(rows, jnp.float32) if prioritised else None,
        )

    @fragment(name="replay.insert")
    def insert(
        self, state: DeviceTable, row: Int[Array, " B"], steps: Any, priority: Float[Array, "T B"] | None = None
    ) -> DeviceTable:
        del row  # the state holds the rows of these environments, in order
        count = jax.tree.leaves(steps)[0].shape[0]
        if count + self.spec.length - 1 > self.spec.steps_per_row:
            raise WeftError(
                f"insert of {count} steps per environment into a table that holds {self.spec.steps_per_row} per "
                f"environment: raise capacity to at least {self.spec.rows * (count + self.spec.length - 1)}"
            )
        slots = (state.written + jnp.arange(count)) % self.spec.steps_per_row
        stored = jax.tree.map(lambda ring, new: ring.at[:, slots].set(jnp.swapaxes(new, 0, 1)), state.steps, steps)
        state = replace(state, steps=stored, written=state.written + count)
        return state if state.tree is None else self._set_weights(state, slots, priority)

    @fragment(name="replay.sample")
    def sample(self, state: DeviceTable, key: jax.Array, shape: tuple[int, ...]) -> tuple[DeviceTable, Batch]:
        draw = self._draw_uniform if state.tree is None else self._draw_prioritised
        row, slot, probability = draw(state, key, shape)
        offset = jnp.arange(self.spec.length).reshape(-1, *(1 for _ in shape))
        slots = (slot + offset) % self.spec.steps_per_row
        steps = jax.tree.map(lambda ring: ring[row, slots], state.steps)
        size = (self._first_and_count(state)[1] * self.spec.rows).astype(jnp.float32)
        return state, Batch(steps, row * self.spec.steps_per_row + slot, probability, size)

    @fragment(name="replay.update")
    def update(self, state: DeviceTable, key: jax.Array, priority: Float[Array, "*n"]) -> DeviceTable:
        assert state.tree is not None and state.highest is not None
        row, slot = jnp.divmod(key, self.spec.steps_per_row)
        tree = set_leaves(state.tree, row, slot, self._weight(priority))
        return replace(state, tree=tree, highest=jnp.maximum(state.highest, per_replica(jnp.max(priority))))

    def _set_weights(self, state: DeviceTable, slots: jax.Array, priority: jax.Array | None) -> DeviceTable:
        """Set the weights of items that new steps completed; clear those of items whose first step they overwrote."""
        assert state.priority is not None and state.tree is not None and state.highest is not None
        rows = state_rows(state)
        highest = per_replica(jnp.max(state.highest))  # of the rows of this replica
        new = jnp.full((rows, len(slots)), highest) if priority is None else jnp.swapaxes(priority, 0, 1)
        priorities = state.priority.at[:, slots].set(new)
        length, steps_per_row = self.spec.length, self.spec.steps_per_row
        first = state.written - len(slots) - (length - 1) + jnp.arange(len(slots) + length - 1)
        complete = (first >= 0) & (first + length <= state.written) & (first % self.spec.period == 0)
        steps = priorities[:, (first[:, None] + jnp.arange(length)) % steps_per_row]
        mixed = self.spec.mix * steps.max(-1) + (1 - self.spec.mix) * steps.mean(-1)
        weight = jnp.where(complete, self._weight(mixed), 0.0)
        tree = set_leaves(state.tree, jnp.arange(rows)[:, None], first[None] % steps_per_row, weight)
        return replace(
            state, priority=priorities, tree=tree, highest=jnp.maximum(state.highest, per_replica(jnp.max(new)))
        )

    def _draw_uniform(
        self, state: DeviceTable, key: jax.Array, shape: tuple[int, ...]
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Draws from all rows alike: equally many from each if `shape` begins with the rows' axis, else random ones."""
        rows = state_rows(state)
        first, count = self._first_and_count(state)
        key_row, key_item = jax.random.split(key)
        if shape[0] == rows:
            row = jnp.broadcast_to(jnp.arange(rows).reshape(-1, *(1 for _ in shape[1:])), shape)
        else:  # which rows a replica has, and so which it can draw, depends on the number of replicas
            row = per_replica(jax.random.randint(key_row, shape, 0, rows))
        item = jax.random.randint(key_item, shape, 0, jnp.maximum(count, 1))
        probability = jnp.broadcast_to(1.0 / (jnp.maximum(count, 1) * self.spec.rows).astype(jnp.float32), shape)
        return row, (first + item * self.spec.period) % self.spec.steps_per_row, probability

    def _draw_prioritised(
        self, state: DeviceTable, key: jax.Array, shape: tuple[int, ...]
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Draws in proportion to the weights. Replicas draw from their own rows, so their number changes the draws."""
        assert state.tree is not None
        n, sums = math.prod(shape), jnp.cumsum(per_replica(state.tree[:, 1]))
        # Stratified sampling: one draw in each of n equal parts of the total lowers the variance of the counts.
        mass = (jnp.arange(n) + jax.random.uniform(key, (n,))) / n * sums[-1]
        row = jnp.minimum(jnp.searchsorted(sums, mass, side="right"), len(sums) - 1)
        slot, weight = find_leaf(state.tree, row, mass - (sums[row] - state.tree[row, 1]))
        return row.reshape(shape), slot.reshape(shape), (weight / sums[-1]).reshape(shape)

    def _first_and_count(self, state: DeviceTable) -> tuple[jax.Array, jax.Array]:
        """The number of the first step at which a complete item begins, and the number of items per environment."""
        period = self.spec.period
        oldest = jnp.maximum(state.written - self.spec.steps_per_row, 0)
        first = (oldest + period - 1) // period * period
        return first, jnp.maximum((state.written - self.spec.length - first) // period + 1, 0)

    def _weight(self, priority: jax.Array) -> jax.Array:
        assert self._exponent is not None
        return jnp.power(priority, self._exponent)

    @property
    def _exponent(self) -> float | None:
        """The priority exponent; None if all items have the same probability."""
        selector = parse_selector(self.spec.sampler)
        return selector.exponent if isinstance(selector, Prioritised) else None

    @property
    def _leaves(self) -> int:
        return 1 << (self.spec.steps_per_row - 1).bit_length()


def state_rows(state: DeviceTable) -> int:
    return jax.tree.leaves(state.steps)[0].shape[0]


def set_leaves(
    tree: Float[Array, "B nodes"], row: Int[Array, "*n"], slot: Int[Array, "*n"], weight: Float[Array, "*n"]
) -> Float[Array, "B nodes"]:
    """Sum trees with new weights at some leaves. Inner sums are recomputed, so rounding errors do not accumulate."""
    leaves = tree.shape[1] // 2

    def update_parents(_: Any, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        tree, node = carry[0], carry[1] // 2
        return tree.at[row, node].set(tree[row, 2 * node] + tree[row, 2 * node + 1]), node

    node = leaves + slot
    return jax.lax.fori_loop(0, leaves.bit_length() - 1, update_parents, (tree.at[row, node].set(weight), node))[0]


def find_leaf(
    tree: Float[Array, "B nodes"], row: Int[Array, " n"], mass: Float[Array, " n"]
) -> tuple[Int[Array, " n"], Float[Array, " n"]]:
    """The leaves at which the cumulative weight first exceeds `mass`, and their weights; never a leaf of weight 0."""
    leaves = tree.shape[1] // 2

    def descend(_: Any, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        node, mass = carry
        left, right = tree[row, 2 * node], tree[row, 2 * node + 1]
        go_right = ((mass >= left) & (right > 0)) | (left <= 0)
        return 2 * node + go_right.astype(node.dtype), jnp.where(go_right, mass - left, mass)

    node, _ = jax.lax.fori_loop(0, leaves.bit_length() - 1, descend, (jnp.ones_like(row), mass))
    return node - leaves, tree[row, node]
