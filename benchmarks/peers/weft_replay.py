"""Measures weft.replay (see `replay_worker`).

The placement of a table is `process` (this process), `shared_memory` or `sockets` (a server process, by how samples are
transported, with several requests in flight), or `device` (arrays in a compiled program).
"""

import argparse
import itertools
import os
import sys
from functools import cache
from typing import Any

import numpy as np
from replay_worker import (
    FRAME,
    LENGTH,
    PERIOD,
    SEQUENCES,
    Operation,
    frames,
    resident_bytes,
    serve_requests,
    start_server,
    transitions,
)

from weft.replay import Prioritised, Store, Table, Uniform, importance_weights
from weft.replay.server import Server, connect
from weft.replay.writer import Writer

ITEMS = 1_000_000
SIGNATURE = {name: column[0] for name, column in transitions(1).items()}
TOKEN = "for measurements only"


def insert(batch: int, *, prioritised: bool = False, placement: str = "process") -> Operation:
    kind = "prioritised" if prioritised else "uniform"
    table = make_table(prioritised) if placement == "process" else remote_table(placement, kind)
    steps = transitions(batch)

    def repeat() -> int:
        table.insert(steps)
        return batch

    return repeat


def step(*, rows: int, chunk: int) -> Operation:
    """Writes one step of `rows` environments per call, through a writer that makes every step an item."""
    store = Store(SIGNATURE, capacity=ITEMS, rows=rows)
    writer, columns = Writer(Table(store=store, capacity=ITEMS), chunk=chunk), transitions(1000 * rows)
    steps = [{name: column[index : index + rows] for name, column in columns.items()} for index in range(1000)]

    def repeat() -> int:
        for each in steps:
            writer.append(each)
        return len(steps) * rows

    return repeat


def sample(batch: int, *, prioritised: bool = False, placement: str = "process") -> Operation:
    """Samples batches; prioritised ones with importance weights, because cpprb computes them too."""
    kind = "prioritised" if prioritised else "uniform"
    samples = sampling(full_table(kind) if placement == "process" else remote_table(placement, kind), batch)

    def repeat() -> int:
        info = next(samples).info
        if prioritised:
            importance_weights(info.probability, info.table_size, 0.4)
        return batch

    return repeat


def update(batch: int, *, placement: str = "process") -> Operation:
    table = full_table("prioritised") if placement == "process" else remote_table(placement, "prioritised")
    keys = itertools.cycle([table.sample(batch).info.key.copy() for _ in range(64)])
    priorities = np.random.default_rng(0).random(batch)

    def repeat() -> int:
        table.update(next(keys), priorities)
        return batch

    return repeat


def sequences(kind: str, *, batch: int, placement: str = "process") -> Operation:
    samples = sampling(full_table(kind) if placement == "process" else remote_table(placement, kind), batch)

    def repeat() -> int:
        next(samples)
        return batch

    return repeat


def memory() -> dict[str, float]:
    """Returns the bytes by which this process grows per item of a full table."""
    steps, before = transitions(10_000), resident_bytes()
    table = make_table(True)
    for _ in range(ITEMS // 10_000):
        table.insert(steps)
    return {"rate": (resident_bytes() - before) / table.size, "cpu_us": 0.0}


def sampling(table: Any, batch: int) -> Any:
    if isinstance(table, Table):
        return (table.sample(batch) for _ in itertools.count())
    return table.samples(batch, ahead=4)


@cache
def full_table(kind: str) -> Table:
    """Returns a table that is filled to its capacity."""
    if kind in ("compressible", "random"):
        return frame_table(kind)
    table, steps, rng = make_table(kind == "prioritised"), transitions(10_000), np.random.default_rng(0)
    for _ in range(ITEMS // 10_000):
        table.insert(steps, rng.random(10_000))
    return table


def frame_table(kind: str) -> Table:
    steps = frames(kind)
    store = Store({"obs": np.zeros(FRAME, np.uint8)}, capacity=len(steps))
    table = Table(store=store, capacity=SEQUENCES, length=LENGTH)
    positions = store.append({"obs": steps})
    table.insert_items(positions[: len(steps) - LENGTH + 1 : PERIOD], LENGTH)
    return table


def make_table(prioritised: bool) -> Table:
    return Table(SIGNATURE, capacity=ITEMS, sampler=Prioritised(exponent=0.6) if prioritised else Uniform())


@cache
def remote_table(placement: str, kind: str) -> Any:
    """Returns the table of a server process."""
    shared = placement == "shared_memory"
    client = connect(start_server(__file__, "--kind", kind), TOKEN, shared=shared)
    assert client.local == shared
    return client.table("table")


def for_any_placement(case: Any) -> Any:
    """Extends a case for tables on the host by the placement `device`."""

    def prepare(*, placement: str = "process", **options: Any) -> Operation:
        if placement != "device":
            return case(placement=placement, **options)
        import weft_device

        return weft_device.CASES[case.__name__](**options)

    return prepare


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve", action="store_true", help="serve a full table until the standard input ends")
    parser.add_argument("--kind", default="uniform", choices=("uniform", "prioritised", "compressible", "random"))
    args = parser.parse_args()
    if args.serve:
        print(f"serving {Server([full_table(args.kind)], token=TOKEN).address}", flush=True)
        sys.stdin.read()
        os._exit(0)
    any_placement = {case.__name__: for_any_placement(case) for case in (insert, sample, update)}
    serve_requests({**any_placement, "step": step, "sequences": sequences, "memory": memory})


if __name__ == "__main__":
    main()
