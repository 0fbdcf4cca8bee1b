"""What replay is to an algorithm: functions of a state, wherever the table is.

`insert` puts in what was collected, `sample` draws a batch of it, `update` changes priorities. Each is a fragment, so
that a layout places them like anything else, and the state that they pass on is an ordinary part of the algorithm's: a
table of arrays on the device, or no more than the name of one on the host. An algorithm is written once for both.

What is sampled is an *item*: `length` steps that follow each other in one environment. Items go through the ends of
episodes: whoever learns from them knows where those are.
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
    """Items drawn from a table, with axes of `shape` where [*n] stands."""

    steps: Any
    """Leaves [length, *n, ...]."""
    key: jax.Array
    """By which `update` finds them."""
    probability: Float[Array, "*n"]
    """Of being drawn, at every draw."""
    size: Float[Array, ""]
    """How many items there were to draw from."""

    @property
    def shape(self) -> tuple[int, ...]:
        return self.probability.shape

    @property
    def flattened(self) -> "Batch":
        """The same with one axis in the place of all of `shape`."""
        rank = len(self.shape)
        steps = jax.tree.map(lambda x: x.reshape(x.shape[0], -1, *x.shape[1 + rank :]), self.steps)
        return Batch(steps, self.key.reshape(-1, *self.key.shape[rank:]), self.probability.reshape(-1), self.size)


@dataclass(frozen=True, kw_only=True)
class TableSpec:
    """What a table keeps, and how it is drawn from."""

    capacity: int
    """Steps in all, shared out over the environments."""
    rows: int
    """Environments in all."""
    length: int = 1
    """Steps of an item."""
    period: int = 1
    """An item begins at every step of an environment, or at every second ..."""
    sampler: str = "uniform"
    """The selector that draws items, with its options: `prioritised:0.6`. Device tables have these two only."""
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
    """A table's functions; they are fragments called `replay.insert`, `replay.sample` and `replay.update`."""

    @property
    def spec(self) -> TableSpec: ...

    def init(self, step: Any, key: jax.Array) -> Any:
        """An empty table for steps like this one, leaves [B, ...]."""
        ...

    def insert(self, state: Any, row: Int[Array, " B"], steps: Any, priority: Float[Array, "T B"] | None) -> Any:
        """Put in steps of these environments, leaves [T, B, ...]; without priorities they get the highest there was."""
        ...

    def sample(self, state: Any, key: jax.Array, shape: tuple[int, ...]) -> tuple[Any, Batch]:
        """Draw items, with repetition. Where the first axis is that of the environments, replicas can share a batch."""
        ...

    def update(self, state: Any, key: jax.Array, priority: Float[Array, "*n"]) -> Any:
        """Change the priorities of items."""
        ...
