"""Measures cpprb (see `replay_worker`)."""

import itertools
from typing import Any

import numpy as np
from cpprb import PrioritizedReplayBuffer, ReplayBuffer
from replay_worker import Operation, resident_bytes, serve_requests, transitions

ITEMS = 1_000_000


def insert(batch: int, *, prioritised: bool = False) -> Operation:
    buffer, steps = make_buffer(prioritised), transitions(batch)

    def repeat() -> int:
        buffer.add(**steps)
        return batch

    return repeat


def step(*, prioritised: bool = False) -> Operation:
    """Inserts one transition per call."""
    buffer, columns = make_buffer(prioritised), transitions(1000)
    steps = [{name: column[index] for name, column in columns.items()} for index in range(1000)]

    def repeat() -> int:
        for each in steps:
            buffer.add(**each)
        return len(steps)

    return repeat


def sample(batch: int, *, prioritised: bool = False) -> Operation:
    buffer = fill_buffer(prioritised)

    def repeat() -> int:
        buffer.sample(batch)
        return batch

    return repeat


def update(batch: int) -> Operation:
    buffer, rng = fill_buffer(True), np.random.default_rng(0)
    indices, priorities = rng.integers(ITEMS, size=(64, batch)), rng.random(batch).astype(np.float32)
    turns = itertools.cycle(range(len(indices)))

    def repeat() -> int:
        buffer.update_priorities(indices[next(turns)], priorities)
        return batch

    return repeat


def memory() -> dict[str, float]:
    before = resident_bytes()
    buffer = fill_buffer(True)
    return {"rate": (resident_bytes() - before) / buffer.get_stored_size(), "cpu_us": 0.0}


def fill_buffer(prioritised: bool) -> Any:
    buffer, rng = make_buffer(prioritised), np.random.default_rng(0)
    steps = transitions(10_000)
    for _ in range(ITEMS // 10_000):
        priorities = {"priorities": rng.random(10_000)} if prioritised else {}
        buffer.add(**steps, **priorities)
    return buffer


def make_buffer(prioritised: bool) -> Any:
    columns = {
        "obs": {"shape": 4},
        "action": {"dtype": np.int32},
        "reward": {},
        "next_obs": {"shape": 4},
        "done": {},
    }
    return (PrioritizedReplayBuffer if prioritised else ReplayBuffer)(ITEMS, columns)


if __name__ == "__main__":
    serve_requests({"insert": insert, "step": step, "sample": sample, "update": update, "memory": memory})
