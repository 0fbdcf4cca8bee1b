"""Reverb, measured in every way it offers: see `replay_worker`.

Items are written by its three writers, with the columns apart or (`packed`) as one column of 44 bytes, which is faster,
by one or several clients at once. They are sampled by its datasets, which batch; its server is in this process, which
it notices, or (`sockets`) in one of its own.
"""

import argparse
import itertools
import sys
import threading
from collections.abc import Iterator
from functools import cache, partial
from typing import Any

import numpy as np
import reverb
import tensorflow as tf
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
from reverb import structured_writer

ITEMS = 100_000
WRITTEN = 4000
"""In one repetition."""
STEP = {
    "obs": tf.TensorSpec((4,), tf.float32),
    "action": tf.TensorSpec((), tf.int32),
    "reward": tf.TensorSpec((), tf.float32),
    "next_obs": tf.TensorSpec((4,), tf.float32),
    "done": tf.TensorSpec((), tf.float32),
}
PACKED = tf.TensorSpec((44,), tf.uint8)
KEPT: list[reverb.Server] = []
"""Servers in this process: they would end if nobody had them."""
TABLES = ("a", "b", "c", "d")


def insert(writer: str, *, packed: bool = False, clients: int = 1, chunk: int = 10) -> Repeated:
    """Items of one step each, by so many clients, each with a table of its own."""
    server = reverb.Server([table(name, packed, False) for name in TABLES])
    KEPT.append(server)
    write, given = WRITERS[writer], steps(WRITTEN // clients, packed)
    works = [(client_of(server.port), name, given, chunk) for name in TABLES[:clients]]

    def repeat() -> int:
        threads = [threading.Thread(target=write, args=work) for work in works[1:]]
        for thread in threads:
            thread.start()
        write(*works[0])
        for thread in threads:
            thread.join()
        return len(given) * clients

    return repeat


def with_trajectories(client: reverb.Client, name: str, given: list[Any], chunk: int) -> None:
    packed = not isinstance(given[0], dict)
    with client.trajectory_writer(num_keep_alive_refs=chunk, validate_items=False) as writer:
        for path in [()] if packed else [(column,) for column in STEP]:
            writer.configure(path, num_keep_alive_refs=chunk, max_chunk_length=chunk)
        for number, step in enumerate(given, 1):
            writer.append(step)
            history = writer.history
            item = history[-1:] if packed else {column: history[column][-1:] for column in STEP}
            writer.create_item(name, 1.0, item)
            if number % 1000 == 0:
                writer.flush(200)


def with_structure(client: reverb.Client, name: str, given: list[Any], chunk: int) -> None:
    reference = structured_writer.create_reference_step(given[0])
    item = {column: reference[column][-1:] for column in STEP} if isinstance(given[0], dict) else reference[-1:]
    writer = client.structured_writer([structured_writer.create_config(item, name)])
    for number, step in enumerate(given, 1):
        writer.append(step)
        if number % 1000 == 0:
            writer.flush(200)
    writer.flush()


def with_steps(client: reverb.Client, name: str, given: list[Any], chunk: int) -> None:
    with client.writer(max_sequence_length=chunk, chunk_length=chunk, max_in_flight_items=1000) as writer:
        for step in given:
            writer.append(step)
            writer.create_item(name, 1, 1.0)


WRITERS = {"trajectory": with_trajectories, "structured": with_structure, "steps": with_steps}


def sample(batch: int, *, sockets: bool = False, packed: bool = False, workers: int = 2, flight: int = 100) -> Repeated:
    """Batches of items of one step each. With `workers` 0, four datasets that batch by themselves, taken in turn."""
    address = filled(sockets, packed)
    signature = PACKED if packed else STEP
    types = tf.nest.map_structure(lambda spec: spec.dtype, signature)
    shapes = tf.nest.map_structure(lambda spec: spec.shape, signature)

    def batches(count: Any) -> tf.data.Dataset:
        return reverb.TimestepDataset(
            address, "a", types, shapes, max_in_flight_samples_per_worker=flight, num_workers_per_iterator=count
        ).batch(batch)

    if workers:
        return taking(batches(workers), batch)
    apart = tf.data.Dataset.range(4).interleave(
        lambda _: batches(1), cycle_length=4, num_parallel_calls=4, deterministic=False
    )
    return taking(apart, batch)


def update(batch: int, *, sockets: bool = False, by: str = "operation") -> Repeated:
    """New priorities for items known by their keys: by the TensorFlow `operation` or by the client's `dictionary`."""
    address = filled(sockets, True, True)
    sampled = reverb.TimestepDataset(address, "a", PACKED.dtype, PACKED.shape, 1000).map(lambda item: item.info.key)
    keys = list(sampled.batch(batch).take(8))
    new = np.random.default_rng(0).random(batch)
    if by == "operation":
        client, priorities = reverb.TFClient(address), tf.constant(new, tf.float64)
        changes = itertools.cycle([partial(client.update_priorities, "a", each, priorities) for each in keys])
    else:
        plain = reverb.Client(address)
        pairs = [dict(zip(each.numpy().tolist(), new.tolist(), strict=True)) for each in keys]
        changes = itertools.cycle([partial(plain.mutate_priorities, "a", updates=each) for each in pairs])

    def repeat() -> int:
        next(changes)()
        return batch

    return repeat


def sequences(kind: str, *, batch: int = 0, sockets: bool = False, workers: int = 2, chunk: int = LENGTH) -> Repeated:
    """Sequences of frames, one by one or in batches."""
    address = filled_with_frames(kind, sockets, chunk)
    dataset = reverb.TrajectoryDataset(
        address,
        "a",
        tf.uint8,
        tf.TensorShape((LENGTH, *FRAME)),
        max_in_flight_samples_per_worker=max(2 * batch, 16),
        num_workers_per_iterator=workers,
    )
    return taking(dataset.batch(batch), batch) if batch else taking(dataset, 1)


def memory(*, packed: bool = False, chunk: int = 1) -> dict[str, float]:
    """Bytes that this process grows by for each item."""
    server = reverb.Server([table("a", packed, True)])
    client, given = client_of(server.port), steps(10_000, packed)
    with_steps(client, "a", given, chunk)
    before = resident_bytes()
    for _ in range(6):
        with_steps(client, "a", given, chunk)
    return {"rate": (resident_bytes() - before) / 60_000, "cpu_us": 0.0}


def taking(dataset: tf.data.Dataset, items: int) -> Repeated:
    batches: Iterator[Any] = iter(dataset)

    def repeat() -> int:
        next(batches)
        return items

    return repeat


def steps(count: int, packed: bool) -> list[Any]:
    """One step at a time, as an environment gives them."""
    columns = transitions(count)
    if not packed:
        return [{name: column[index] for name, column in columns.items()} for index in range(count)]
    flat = [np.ascontiguousarray(column).view(np.uint8).reshape(count, -1) for column in columns.values()]
    return list(np.concatenate(flat, axis=1))


def table(name: str, packed: bool, prioritised: bool) -> reverb.Table:
    sampler = reverb.selectors.Prioritized(0.6) if prioritised else reverb.selectors.Uniform()
    return bare_table(name, ITEMS, PACKED if packed else STEP, sampler)


def bare_table(name: str, size: int, signature: Any, sampler: Any) -> reverb.Table:
    limiter = reverb.rate_limiters.MinSize(1)
    return reverb.Table(name, sampler, reverb.selectors.Fifo(), size, limiter, signature=signature)


def client_of(port: int) -> reverb.Client:
    return reverb.Client(f"localhost:{port}")


@cache
def filled(sockets: bool, packed: bool, prioritised: bool = False) -> str:
    """The address of a server with a full table."""
    if sockets:
        return serving(__file__, *["--packed"] * packed, *["--prioritised"] * prioritised)
    server = reverb.Server([table("a", packed, prioritised)])
    KEPT.append(server)
    client, given = client_of(server.port), steps(10_000, packed)
    for _ in range(ITEMS // len(given)):
        with_steps(client, "a", given, 1)
    return f"localhost:{server.port}"


@cache
def filled_with_frames(kind: str, sockets: bool, chunk: int) -> str:
    if sockets:
        return serving(__file__, "--frames", kind, "--chunk", str(chunk))
    signature = tf.TensorSpec((LENGTH, *FRAME), tf.uint8)
    server = reverb.Server([bare_table("a", SEQUENCES, signature, reverb.selectors.Uniform())])
    KEPT.append(server)
    with client_of(server.port).trajectory_writer(num_keep_alive_refs=LENGTH) as writer:
        writer.configure((), num_keep_alive_refs=LENGTH, max_chunk_length=chunk)
        for number, frame in enumerate(frames(kind), 1):
            writer.append(frame)
            if number >= LENGTH and number % PERIOD == 0:
                writer.create_item("a", 1.0, writer.history[-LENGTH:])
                writer.flush(2)
    return f"localhost:{server.port}"


def serve(args: argparse.Namespace) -> None:
    address = (
        filled_with_frames(args.frames, False, args.chunk)
        if args.frames
        else filled(False, args.packed, args.prioritised)
    )
    print(f"serving {address}", flush=True)
    sys.stdin.read()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve", action="store_true", help="a full table, until the standard input ends")
    parser.add_argument("--packed", action="store_true")
    parser.add_argument("--prioritised", action="store_true")
    parser.add_argument("--frames", choices=("random", "compressible"))
    parser.add_argument("--chunk", type=int, default=LENGTH)
    args = parser.parse_args()
    if args.serve:
        serve(args)
    else:
        obey({"insert": insert, "sample": sample, "update": update, "sequences": sequences, "memory": memory})


if __name__ == "__main__":
    main()
