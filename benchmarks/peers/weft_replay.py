"""weft.replay, measured as its peers are: see `replay_worker`.

A table is in this process, or in a server of its own, from which samples come through shared memory (`host`) or through
sockets (`sockets`), with several requests under way; or it is arrays of a compiled program (`device`).
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
    Repeated,
    frames,
    obey,
    resident_bytes,
    serving,
    transitions,
)

from weft.replay import Prioritised, Store, Table, Uniform, importance_weights
from weft.replay.server.client import connect
from weft.replay.server.server import Server
from weft.replay.writer import Writer

ITEMS = 1_000_000
SIGNATURE = {name: column[0] for name, column in transitions(1).items()}
TOKEN = "for measurements only"


def insert(batch: int, *, prioritised: bool = False, where: str = "process") -> Repeated:
    table = empty(prioritised) if where == "process" else reached(where, "prioritised" if prioritised else "uniform")
    given = transitions(batch)

    def repeat() -> int:
        table.insert(given)
        return batch

    return repeat


def step(*, rows: int, chunk: int) -> Repeated:
    """One step at a time of so many environments, through a writer that makes an item of each."""
    store = Store(SIGNATURE, capacity=ITEMS, rows=rows)
    writer, columns = Writer(Table(store=store, capacity=ITEMS), chunk=chunk), transitions(1000 * rows)
    steps = [{name: column[index : index + rows] for name, column in columns.items()} for index in range(1000)]

    def repeat() -> int:
        for each in steps:
            writer.append(each)
        return len(steps) * rows

    return repeat


def sample(batch: int, *, prioritised: bool = False, where: str = "process") -> Repeated:
    """Batches of items; of prioritised ones with the importance weights, as cpprb gives them."""
    kind = "prioritised" if prioritised else "uniform"
    samples = sampling(full(kind) if where == "process" else reached(where, kind), batch)

    def repeat() -> int:
        info = next(samples).info
        if prioritised:
            importance_weights(info.probability, info.table_size, 0.4)
        return batch

    return repeat


def update(batch: int, *, where: str = "process") -> Repeated:
    table = full("prioritised") if where == "process" else reached(where, "prioritised")
    keys = itertools.cycle([table.sample(batch).info.key.copy() for _ in range(64)])
    new = np.random.default_rng(0).random(batch)

    def repeat() -> int:
        table.update(next(keys), new)
        return batch

    return repeat


def sequences(kind: str, *, batch: int, where: str = "process") -> Repeated:
    samples = sampling(full(kind) if where == "process" else reached(where, kind), batch)

    def repeat() -> int:
        next(samples)
        return batch

    return repeat


def memory() -> dict[str, float]:
    """Bytes that this process grows by for each item of a full table."""
    given, before = transitions(10_000), resident_bytes()
    table = empty(True)
    for _ in range(ITEMS // 10_000):
        table.insert(given)
    return {"rate": (resident_bytes() - before) / table.size, "cpu_us": 0.0}


def sampling(table: Any, batch: int) -> Any:
    if isinstance(table, Table):
        return (table.sample(batch) for _ in itertools.count())
    return table.samples(batch, ahead=4)


@cache
def full(kind: str) -> Table:
    """A table with as many items as it can have."""
    if kind in ("compressible", "random"):
        return full_of_frames(kind)
    table, given, rng = empty(kind == "prioritised"), transitions(10_000), np.random.default_rng(0)
    for _ in range(ITEMS // 10_000):
        table.insert(given, rng.random(10_000))
    return table


def full_of_frames(kind: str) -> Table:
    steps = frames(kind)
    store = Store({"obs": np.zeros(FRAME, np.uint8)}, capacity=len(steps))
    table = Table(store=store, capacity=SEQUENCES, length=LENGTH)
    positions = store.append({"obs": steps})
    table.insert_items(positions[: len(steps) - LENGTH + 1 : PERIOD], LENGTH)
    return table


def empty(prioritised: bool) -> Table:
    return Table(SIGNATURE, capacity=ITEMS, sampler=Prioritised(exponent=0.6) if prioritised else Uniform())


@cache
def reached(where: str, kind: str) -> Any:
    """The table of a server in a process of its own."""
    client = connect(serving(__file__, "--kind", kind), TOKEN, shared=where == "host")
    assert client.local == (where == "host")
    return client.table("table")


def placed(case: Any) -> Any:
    """What is measured, on the host or on the device."""

    def repeated(*, where: str = "process", **options: Any) -> Repeated:
        if where != "device":
            return case(where=where, **options)
        import weft_device

        return weft_device.CASES[case.__name__](**options)

    return repeated


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve", action="store_true", help="a full table, until the standard input ends")
    parser.add_argument("--kind", default="uniform", choices=("uniform", "prioritised", "compressible", "random"))
    args = parser.parse_args()
    if args.serve:
        print(f"serving {Server([full(args.kind)], token=TOKEN).address}", flush=True)
        sys.stdin.read()
        os._exit(0)
    either = {case.__name__: placed(case) for case in (insert, sample, update)}
    obey({**either, "step": step, "sequences": sequences, "memory": memory})


if __name__ == "__main__":
    main()
