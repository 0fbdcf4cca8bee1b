"""Chooses the kind of pool: all environments in this process, or in several worker processes.

Worker processes are faster once the time they save by stepping in parallel exceeds the cost of exchanging data. Both
kinds produce the same trajectories, so the choice affects speed only.
"""

import functools
import os
from typing import Protocol

from weft.envs.pools.options import PoolOptions

# Overhead of one step of a worker pool, besides its environments' steps. These are two to three times the values
# measured on an idle machine: where both kinds are about equally fast, one process wins, because it competes for fewer
# cores.
EXCHANGE_SECONDS = 200e-6
EXCHANGE_SECONDS_PER_WORKER = 40e-6


class Timed(Protocol):
    """A hashable value that knows how long its environment takes."""

    @property
    def step_seconds(self) -> float:
        """Duration of one step of one environment."""
        ...


@functools.cache
def choose_kind(timed: Timed, options: PoolOptions, num_envs: int) -> str:
    """Returns the kind of pool to use for `num_envs` environments: the one the options name, or the faster one."""
    if options.vector != "auto":
        return options.vector
    workers = worker_count(options, num_envs)
    # Workers that wait for a core save no time.
    if min(workers, idle_cores()) < 2:
        return "inprocess"
    saved = timed.step_seconds * (num_envs - -(-num_envs // workers))
    return "workers" if saved > EXCHANGE_SECONDS + EXCHANGE_SECONDS_PER_WORKER * workers else "inprocess"


def worker_count(options: PoolOptions, num_envs: int) -> int:
    """Returns the number of worker processes: one per core unless the options say otherwise, at most one per row."""
    return min(options.workers or cores(), num_envs)


def cores() -> int:
    """Returns the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def idle_cores() -> int:
    """Returns the number of cores without load, by the one-minute load average."""
    busy = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return max(cores() - round(busy), 0)
