"""A process that measures when it is told to; requests and answers are lines of JSON.

Contenders live in environments of their own, so each is a script that hands `obey` what it can do by name:

    obey({"sample": sample})        # sample(batch=256) makes the table and returns what is to be repeated

What is to be repeated returns how many items it handled. It is made once for each set of options and then measured in
every round, so that contenders can take turns without anybody filling a table twice.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

import numpy as np

Repeated = Callable[[], int]
Case = Callable[..., Repeated | dict[str, Any]]

SERVERS: list[subprocess.Popen[str]] = []

FRAME = (84, 84)
LENGTH = 80
PERIOD = 40
SEQUENCES = 512
"""That are in a table of frames: 80 steps each, a new one every 40 steps."""


def obey(cases: dict[str, Case]) -> None:
    """Measure one case after another until there are no more requests."""
    answers, made = answers_apart(), {}
    for line in sys.stdin:
        request = json.loads(line)
        case = json.dumps([request["case"], request["options"]], sort_keys=True)
        if case not in made:
            made[case] = cases[request["case"]](**request["options"])
        found = made[case]
        print(json.dumps(found if isinstance(found, dict) else rate(found, request["seconds"])), file=answers)
        answers.flush()
    answers.flush()
    os._exit(0)  # Samplers and servers that wait in other threads would keep this process.


def answers_apart() -> TextIO:
    """Where answers go; what libraries print goes elsewhere."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers


def rate(repeated: Repeated, seconds: float) -> dict[str, float]:
    """Items per second, and the processor time for each, of this process and of its servers.

    Something is done before, uncounted: what a sampler had ready is used up.
    """
    ends = time.perf_counter() + seconds / 3
    repeated()
    while time.perf_counter() < ends:
        repeated()
    items, cpu, began = 0, processor_seconds(), time.perf_counter()
    while (now := time.perf_counter()) < began + seconds:
        items += repeated()
    return {"rate": items / (now - began), "cpu_us": 1e6 * (processor_seconds() - cpu) / max(items, 1)}


def processor_seconds() -> float:
    return time.process_time() + sum(map(ticks, SERVERS)) / os.sysconf("SC_CLK_TCK")


def ticks(server: subprocess.Popen[str]) -> int:
    """Processor time that another process has had."""
    with open(f"/proc/{server.pid}/stat") as stat:
        return sum(map(int, stat.read().rpartition(")")[2].split()[11:13]))


def transitions(count: int) -> dict[str, np.ndarray]:
    """So many transitions of 44 bytes, as columns."""
    rng = np.random.default_rng(0)
    return {
        "obs": rng.normal(size=(count, 4)).astype(np.float32),
        "action": rng.integers(2, size=count, dtype=np.int32),
        "reward": rng.normal(size=count).astype(np.float32),
        "next_obs": rng.normal(size=(count, 4)).astype(np.float32),
        "done": (rng.random(count) < 0.01).astype(np.float32),
    }


def frames(kind: str) -> np.ndarray:
    """The steps of all sequences: `random` bytes, or a still background on which two things move (`compressible`)."""
    count = LENGTH + PERIOD * (SEQUENCES - 1)
    rng = np.random.default_rng(0)
    if kind == "random":
        return rng.integers(256, size=(count, *FRAME), dtype=np.uint8)
    found = np.empty((count, *FRAME), np.uint8)
    found[:] = np.repeat(np.arange(0, 84, 12), 12)[:, None]
    for step, (x, y) in enumerate(zip(*(speed * np.arange(count) % 76 for speed in (3, 5)), strict=True)):
        found[step, x : x + 4, y : y + 4] = 200
        found[step, 76:80, y : y + 8] = 120
    return found


def serving(script: str, *options: str) -> str:
    """The address of a server in a process that ends with this one."""
    command = [sys.executable, script, "--serve", *options]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    SERVERS.append(server)
    assert server.stdout is not None
    return next(line.split()[1] for line in server.stdout if line.startswith("serving "))


def resident_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
