"""The interface of replay for algorithms: pure functions of a state, for tables on the device and on the host.

`insert` adds collected steps, `sample` draws a batch, `update` changes priorities. Each is a fragment, so a layout can
place it on a role. Their state is part of the algorithm's state: the table's arrays on the device, or a handle of a
table on the host. An algorithm is written once for both.

A sample consists of *items*: `length` consecutive steps of one environment. Items cross the ends of episodes; the
algorithm finds these in the steps.
"""

from dataclasses import dataclass
from typing import Any, Literal, Protocol

import jax
from jaxtyping import Array, Float, Int

from weft.errors import WeftError

ReplayKind = Literal["auto", "device", "host"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Batch:
    """Items drawn from a table; [*n] stands for the axes of `shape`."""

    steps: Any
    """Leaves [length, *n, ...]."""
    key: jax.Array
    """The items' keys, for `update`."""
    probability: Float[Array, "*n"]
    """The probability of each item in each draw."""
    size: Float[Array, ""]
    """The number of items in the table."""

    @property
    def shape(self) -> tuple[int, ...]:
        return self.probability.shape

    @property
    def flattened(self) -> "Batch":
        """The batch with one axis instead of the axes of `shape`."""
        rank = len(self.shape)
        steps = jax.tree.map(lambda x: x.reshape(x.shape[0], -1, *x.shape[1 + rank :]), self.steps)
        return Batch(steps, self.key.reshape(-1, *self.key.shape[rank:]), self.probability.reshape(-1), self.size)


@dataclass(frozen=True, kw_only=True)
class TableSpec:
    """The size of a replay table, its items, and how they are sampled."""

    capacity: int
    """Total number of steps, divided among the environments."""
    rows: int
    """Total number of environments."""
    length: int = 1
    """Number of steps in an item."""
    period: int = 1
    """An item begins at every `period`-th step of an environment."""
    sampler: str = "uniform"
    """The selector that draws items: `uniform`, `prioritised:0.6`, or, for host tables, any other registered one."""
    mix: float = 1.0
    """An item's first priority is between the mean (0) and the maximum (1) of its steps' priorities."""

    def __post_init__(self) -> None:
        if self.steps_per_row < self.length:
            raise WeftError(
                f"capacity={self.capacity} is {self.steps_per_row} steps for each of {self.rows} environments, and an "
                f"item has {self.length} steps: give at least capacity={self.rows * self.length}"
            )

    @property
    def steps_per_row(self) -> int:
        return self.capacity // self.rows


class Replay(Protocol):
    """The functions of a table; they are the fragments `replay.insert`, `replay.sample` and `replay.update`."""

    @property
    def spec(self) -> TableSpec: ...

    def init(self, step: Any, key: jax.Array) -> Any:
        """The state of an empty table for steps like `step`, leaves [B, ...]."""
        ...

    def insert(self, state: Any, row: Int[Array, " B"], steps: Any, priority: Float[Array, "T B"] | None) -> Any:
        """Insert steps of the environments `row`, leaves [T, B, ...]. The default is the highest priority so far."""
        ...

    def sample(self, state: Any, key: jax.Array, shape: tuple[int, ...]) -> tuple[Any, Batch]:
        """Draw items with replacement. If `shape` begins with the environments' axis, replicas can divide a batch."""
        ...

    def update(self, state: Any, key: jax.Array, priority: Float[Array, "*n"]) -> Any:
        """Set the priorities of items."""
        ...
