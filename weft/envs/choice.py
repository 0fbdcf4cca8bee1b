"""Who runs the environments of a game: this process or several.

Worker processes win as soon as what they save, the time of the steps that others do meanwhile, is more than what the
exchange costs. Both kinds of pool give the same streams, so this changes nothing but speed.
"""

import functools
import os

from weft.envs.options import Options
from weft.envs.source import Source

# What one step of a pool of workers costs besides the steps of its environments: two to three times what was measured
# on an idle machine, so that what is about as quick either way stays in one process, where nobody competes for cores.
EXCHANGE_SECONDS = 200e-6
EXCHANGE_SECONDS_EACH = 40e-6


@functools.cache
def chosen(source: Source, options: Options, num_envs: int) -> str:
    """The kind of pool for so many environments: what was asked for, or the quicker one."""
    if options.vector != "auto":
        return options.vector
    workers = worker_count(options, num_envs)
    # Processes that wait for a core save nothing.
    if min(workers, idle_cores()) < 2:
        return "inprocess"
    saved = source.step_seconds * (num_envs - -(-num_envs // workers))
    return "workers" if saved > EXCHANGE_SECONDS + EXCHANGE_SECONDS_EACH * workers else "inprocess"


def worker_count(options: Options, num_envs: int) -> int:
    """How many worker processes: as many as was asked for or as there are cores, but none without an environment."""
    return min(options.workers or cores(), num_envs)


def cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def idle_cores() -> int:
    """How many cores have had nothing to do lately."""
    busy = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return max(cores() - round(busy), 0)
