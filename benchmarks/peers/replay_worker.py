"""Measures operations on request, in a process of its own. Requests and results are lines of JSON.

Every library has its own Python environment, so each is measured by a script that passes its cases to
`serve_requests`:

    serve_requests({"sample": sample})      # sample(batch=256) fills a table and returns the operation to repeat

An operation returns the number of items that it handled. It is prepared once for every set of options and measured in
every round, so tables are filled only once.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

import numpy as np

Operation = Callable[[], int]
Case = Callable[..., Operation | dict[str, Any]]
"""Prepares an operation from options, or returns a result directly."""

SERVERS: list[subprocess.Popen[str]] = []
"""The server processes that `start_server` started."""

FRAME = (84, 84)
LENGTH = 80
PERIOD = 40
SEQUENCES = 512
"""Sequences in a table of frames: 80 steps each, starting every 40 steps."""


def serve_requests(cases: dict[str, Case]) -> None:
    """Measures one case per request until the standard input ends."""
    results, prepared = redirect_stdout(), {}
    for line in sys.stdin:
        request = json.loads(line)
        case = json.dumps([request["case"], request["options"]], sort_keys=True)
        if case not in prepared:
            prepared[case] = cases[request["case"]](**request["options"])
        operation = prepared[case]
        result = operation if isinstance(operation, dict) else measure_rate(operation, request["seconds"])
        print(json.dumps(result), file=results)
        results.flush()
    results.flush()
    os._exit(0)  # Other threads (samplers, servers) would keep this process alive.


def redirect_stdout() -> TextIO:
    """Returns the standard output for results; what libraries print goes to the standard error instead."""
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return results


def measure_rate(operation: Operation, seconds: float) -> dict[str, float]:
    """Returns items per second, and processor time per item of this process and its servers.

    An uncounted warm-up first uses up the samples that a sampler has prefetched.
    """
    ends = time.perf_counter() + seconds / 3
    operation()
    while time.perf_counter() < ends:
        operation()
    items, cpu, began = 0, processor_seconds(), time.perf_counter()
    while (now := time.perf_counter()) < began + seconds:
        items += operation()
    return {"rate": items / (now - began), "cpu_us": 1e6 * (processor_seconds() - cpu) / max(items, 1)}


def processor_seconds() -> float:
    return time.process_time() + sum(map(processor_ticks, SERVERS)) / os.sysconf("SC_CLK_TCK")


def processor_ticks(server: subprocess.Popen[str]) -> int:
    """Processor time that another process has used."""
    with open(f"/proc/{server.pid}/stat") as stat:
        return sum(map(int, stat.read().rpartition(")")[2].split()[11:13]))


def transitions(count: int) -> dict[str, np.ndarray]:
    """Transitions of 44 bytes, as columns."""
    rng = np.random.default_rng(0)
    return {
        "obs": rng.normal(size=(count, 4)).astype(np.float32),
        "action": rng.integers(2, size=count, dtype=np.int32),
        "reward": rng.normal(size=count).astype(np.float32),
        "next_obs": rng.normal(size=(count, 4)).astype(np.float32),
        "done": (rng.random(count) < 0.01).astype(np.float32),
    }


def frames(kind: str) -> np.ndarray:
    """The steps of all sequences: `random` bytes, or a static background with two moving objects (`compressible`)."""
    count = LENGTH + PERIOD * (SEQUENCES - 1)
    rng = np.random.default_rng(0)
    if kind == "random":
        return rng.integers(256, size=(count, *FRAME), dtype=np.uint8)
    images = np.empty((count, *FRAME), np.uint8)
    images[:] = np.repeat(np.arange(0, 84, 12), 12)[:, None]
    for step, (x, y) in enumerate(zip(*(speed * np.arange(count) % 76 for speed in (3, 5)), strict=True)):
        images[step, x : x + 4, y : y + 4] = 200
        images[step, 76:80, y : y + 8] = 120
    return images


def start_server(script: str, *options: str) -> str:
    """Starts a server in a process that ends with this one; returns its address."""
    command = [sys.executable, script, "--serve", *options]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    SERVERS.append(server)
    assert server.stdout is not None
    return next(line.split()[1] for line in server.stdout if line.startswith("serving "))


def resident_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
