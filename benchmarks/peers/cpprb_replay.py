"""cpprb, measured: see `replay_worker`."""

import itertools
from typing import Any

import numpy as np
from cpprb import PrioritizedReplayBuffer, ReplayBuffer
from replay_worker import Repeated, obey, resident_bytes, transitions

ITEMS = 1_000_000


def insert(batch: int, *, prioritised: bool = False) -> Repeated:
    buffer, given = empty(prioritised), transitions(batch)

    def repeat() -> int:
        buffer.add(**given)
        return batch

    return repeat


def step(*, prioritised: bool = False) -> Repeated:
    """One transition at a time."""
    buffer, columns = empty(prioritised), transitions(1000)
    steps = [{name: column[index] for name, column in columns.items()} for index in range(1000)]

    def repeat() -> int:
        for each in steps:
            buffer.add(**each)
        return len(steps)

    return repeat


def sample(batch: int, *, prioritised: bool = False) -> Repeated:
    buffer = full(prioritised)

    def repeat() -> int:
        buffer.sample(batch)
        return batch

    return repeat


def update(batch: int) -> Repeated:
    buffer, rng = full(True), np.random.default_rng(0)
    indexes, new = rng.integers(ITEMS, size=(64, batch)), rng.random(batch).astype(np.float32)
    turns = itertools.cycle(range(len(indexes)))

    def repeat() -> int:
        buffer.update_priorities(indexes[next(turns)], new)
        return batch

    return repeat


def memory() -> dict[str, float]:
    before = resident_bytes()
    buffer = full(True)
    return {"rate": (resident_bytes() - before) / buffer.get_stored_size(), "cpu_us": 0.0}


def full(prioritised: bool) -> Any:
    buffer, rng = empty(prioritised), np.random.default_rng(0)
    given = transitions(10_000)
    for _ in range(ITEMS // 10_000):
        priorities = {"priorities": rng.random(10_000)} if prioritised else {}
        buffer.add(**given, **priorities)
    return buffer


def empty(prioritised: bool) -> Any:
    columns = {
        "obs": {"shape": 4},
        "action": {"dtype": np.int32},
        "reward": {},
        "next_obs": {"shape": 4},
        "done": {},
    }
    return (PrioritizedReplayBuffer if prioritised else ReplayBuffer)(ITEMS, columns)


if __name__ == "__main__":
    obey({"insert": insert, "step": step, "sample": sample, "update": update, "memory": memory})
