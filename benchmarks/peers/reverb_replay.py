"""Measures Reverb in every way that it offers (see `replay_worker`).

Items are written by its three writers, with separate columns or (`packed`) with one column of 44 bytes, which is
faster, by one or several clients at once. They are sampled by its datasets, which form batches. Its server is in this
process, which Reverb detects and uses, or (`sockets`) in a process of its own.
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
    Operation,
    frames,
    resident_bytes,
    serve_requests,
    start_server,
    transitions,
)
from reverb import structured_writer

ITEMS = 100_000
WRITTEN = 4000
"""Items per operation."""
STEP = {
    "obs": tf.TensorSpec((4,), tf.float32),
    "action": tf.TensorSpec((), tf.int32),
    "reward": tf.TensorSpec((), tf.float32),
    "next_obs": tf.TensorSpec((4,), tf.float32),
    "done": tf.TensorSpec((), tf.float32),
}
PACKED = tf.TensorSpec((44,), tf.uint8)
LOCAL_SERVERS: list[reverb.Server] = []
"""Servers in this process. A server stops when it is garbage-collected."""
TABLES = ("a", "b", "c", "d")


def insert(writer: str, *, packed: bool = False, clients: int = 1, chunk: int = 10) -> Operation:
    """Writes items of one step each, with several clients that write to different tables."""
    server = reverb.Server([table(name, packed, False) for name in TABLES])
    LOCAL_SERVERS.append(server)
    write, written = WRITERS[writer], steps(WRITTEN // clients, packed)
    arguments = [(client_of(server.port), name, written, chunk) for name in TABLES[:clients]]

    def repeat() -> int:
        threads = [threading.Thread(target=write, args=each) for each in arguments[1:]]
        for thread in threads:
            thread.start()
        write(*arguments[0])
        for thread in threads:
            thread.join()
        return len(written) * clients

    return repeat


def write_trajectories(client: reverb.Client, name: str, written: list[Any], chunk: int) -> None:
    packed = not isinstance(written[0], dict)
    with client.trajectory_writer(num_keep_alive_refs=chunk, validate_items=False) as writer:
        for path in [()] if packed else [(column,) for column in STEP]:
            writer.configure(path, num_keep_alive_refs=chunk, max_chunk_length=chunk)
        for number, step in enumerate(written, 1):
            writer.append(step)
            history = writer.history
            item = history[-1:] if packed else {column: history[column][-1:] for column in STEP}
            writer.create_item(name, 1.0, item)
            if number % 1000 == 0:
                writer.flush(200)


def write_structured(client: reverb.Client, name: str, written: list[Any], chunk: int) -> None:
    reference = structured_writer.create_reference_step(written[0])
    item = {column: reference[column][-1:] for column in STEP} if isinstance(written[0], dict) else reference[-1:]
    writer = client.structured_writer([structured_writer.create_config(item, name)])
    for number, step in enumerate(written, 1):
        writer.append(step)
        if number % 1000 == 0:
            writer.flush(200)
    writer.flush()


def write_steps(client: reverb.Client, name: str, written: list[Any], chunk: int) -> None:
    with client.writer(max_sequence_length=chunk, chunk_length=chunk, max_in_flight_items=1000) as writer:
        for step in written:
            writer.append(step)
            writer.create_item(name, 1, 1.0)


WRITERS = {"trajectory": write_trajectories, "structured": write_structured, "steps": write_steps}


def sample(
    batch: int, *, sockets: bool = False, packed: bool = False, workers: int = 2, flight: int = 100
) -> Operation:
    """Samples batches of one-step items; with `workers` 0, from four interleaved datasets that batch in parallel."""
    address = serve_items(sockets, packed)
    signature = PACKED if packed else STEP
    types = tf.nest.map_structure(lambda spec: spec.dtype, signature)
    shapes = tf.nest.map_structure(lambda spec: spec.shape, signature)

    def batches(count: Any) -> tf.data.Dataset:
        return reverb.TimestepDataset(
            address, "a", types, shapes, max_in_flight_samples_per_worker=flight, num_workers_per_iterator=count
        ).batch(batch)

    if workers:
        return repeat_next(batches(workers), batch)
    interleaved = tf.data.Dataset.range(4).interleave(
        lambda _: batches(1), cycle_length=4, num_parallel_calls=4, deterministic=False
    )
    return repeat_next(interleaved, batch)


def update(batch: int, *, sockets: bool = False, by: str = "operation") -> Operation:
    """Updates priorities, given as tensors to a TensorFlow `operation`, or to the client as a `dictionary`."""
    address = serve_items(sockets, True, True)
    sampled = reverb.TimestepDataset(address, "a", PACKED.dtype, PACKED.shape, 1000).map(lambda item: item.info.key)
    keys = list(sampled.batch(batch).take(8))
    values = np.random.default_rng(0).random(batch)
    if by == "operation":
        client, priorities = reverb.TFClient(address), tf.constant(values, tf.float64)
        updates = itertools.cycle([partial(client.update_priorities, "a", each, priorities) for each in keys])
    else:
        plain = reverb.Client(address)
        pairs = [dict(zip(each.numpy().tolist(), values.tolist(), strict=True)) for each in keys]
        updates = itertools.cycle([partial(plain.mutate_priorities, "a", updates=each) for each in pairs])

    def repeat() -> int:
        next(updates)()
        return batch

    return repeat


def sequences(kind: str, *, batch: int = 0, sockets: bool = False, workers: int = 2, chunk: int = LENGTH) -> Operation:
    """Samples sequences of frames, singly or in batches."""
    address = serve_frames(kind, sockets, chunk)
    dataset = reverb.TrajectoryDataset(
        address,
        "a",
        tf.uint8,
        tf.TensorShape((LENGTH, *FRAME)),
        max_in_flight_samples_per_worker=max(2 * batch, 16),
        num_workers_per_iterator=workers,
    )
    return repeat_next(dataset.batch(batch), batch) if batch else repeat_next(dataset, 1)


def memory(*, packed: bool = False, chunk: int = 1) -> dict[str, float]:
    """Returns the bytes by which this process grows per item."""
    server = reverb.Server([table("a", packed, True)])
    client, written = client_of(server.port), steps(10_000, packed)
    write_steps(client, "a", written, chunk)
    before = resident_bytes()
    for _ in range(6):
        write_steps(client, "a", written, chunk)
    return {"rate": (resident_bytes() - before) / 60_000, "cpu_us": 0.0}


def repeat_next(dataset: tf.data.Dataset, items: int) -> Operation:
    batches: Iterator[Any] = iter(dataset)

    def repeat() -> int:
        next(batches)
        return items

    return repeat


def steps(count: int, packed: bool) -> list[Any]:
    """Returns single steps, as an environment produces them."""
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
def serve_items(sockets: bool, packed: bool, prioritised: bool = False) -> str:
    """Starts a server with a full table of transitions; returns its address."""
    if sockets:
        return start_server(__file__, *["--packed"] * packed, *["--prioritised"] * prioritised)
    server = reverb.Server([table("a", packed, prioritised)])
    LOCAL_SERVERS.append(server)
    client, written = client_of(server.port), steps(10_000, packed)
    for _ in range(ITEMS // len(written)):
        write_steps(client, "a", written, 1)
    return f"localhost:{server.port}"


@cache
def serve_frames(kind: str, sockets: bool, chunk: int) -> str:
    """Starts a server with a full table of sequences of frames; returns its address."""
    if sockets:
        return start_server(__file__, "--frames", kind, "--chunk", str(chunk))
    signature = tf.TensorSpec((LENGTH, *FRAME), tf.uint8)
    server = reverb.Server([bare_table("a", SEQUENCES, signature, reverb.selectors.Uniform())])
    LOCAL_SERVERS.append(server)
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
        serve_frames(args.frames, False, args.chunk)
        if args.frames
        else serve_items(False, args.packed, args.prioritised)
    )
    print(f"serving {address}", flush=True)
    sys.stdin.read()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve", action="store_true", help="serve a full table until the standard input ends")
    parser.add_argument("--packed", action="store_true")
    parser.add_argument("--prioritised", action="store_true")
    parser.add_argument("--frames", choices=("random", "compressible"))
    parser.add_argument("--chunk", type=int, default=LENGTH)
    args = parser.parse_args()
    if args.serve:
        serve(args)
    else:
        serve_requests({"insert": insert, "sample": sample, "update": update, "sequences": sequences, "memory": memory})


if __name__ == "__main__":
    main()
