"""A run's folder: its settings, what was measured, and what was learned.

    runs/ppo-gymnax-CartPole-v1-20250102-030405/
        config.json          what was run, enough to run it again
        metrics.jsonl        one line for each iteration
        evals.jsonl          one line for each evaluation, if there were any
        system.jsonl         one line about each second: where the time went, if there are several roles or replicas
        events.out.tfevents  the same for TensorBoard
        params.safetensors   the trained parameters

With lanes, each line of `metrics.jsonl` has the `lag` of the work that was taken in that iteration, in the mean, and
`lag_max`. A line of `system.jsonl` is about the seconds since the line before, and the last one, where `total` is true,
about the whole run. Its names, for every role and for every edge from a role to another (see `weft.report.system`):

    steps, seconds, total, over_s             when it was read, and how many seconds it is about
    role/ROLE/computing, waiting, sending     shares of the time of all replicas together: they add up to 1
    edge/FROM-to-TO/KIND/messages_per_s       KIND is stream, register, lanes (where messages are pieces of work that
                         bytes_per_s          were taken), begin, merge, batch or report; each has the numbers that
                                              say something about it
                         depth, depth_max     what was sent and waits: at the moment, and the most
                         sender_waits_s       seconds that all replicas of FROM together waited there
                         receiver_waits_s     the same of TO
    lag/mean, lag/max, lag/counts             of the work that was taken: how often each lag
    batch/ROLE/counts                         how often so many calls were made as one

>>> safe_name("ppo-gymnax:CartPole-v1")
'ppo-gymnax-CartPole-v1'
"""

import dataclasses
import itertools
import json
import os
import re
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import jax

from weft.algorithm import Algorithm, name_of
from weft.envs.world import World
from weft.errors import WeftError
from weft.report.logs import EvalLog, EventLog, MetricLog, SystemLog
from weft.report.update import Update
from weft.version import VERSION

CONFIG = "config.json"
METRICS = "metrics.jsonl"
EVALS = "evals.jsonl"
SYSTEM = "system.jsonl"
PARAMS = "params.safetensors"


class RunFolder:
    """The folder as an observer. It is made at the first update: a run that is refused leaves nothing behind."""

    def __init__(self, path: Path, config: Mapping[str, Any]):
        self.path = path
        self._config = config
        self._logs: tuple[MetricLog | EvalLog | SystemLog | EventLog, ...] = ()

    def __call__(self, update: Update) -> None:
        if not self._logs:
            self.path.mkdir(parents=True, exist_ok=True)
            write_config(self.path / CONFIG, self._config)
            lines = (MetricLog(self.path / METRICS), EvalLog(self.path / EVALS), SystemLog(self.path / SYSTEM))
            self._logs = (*lines, EventLog(self.path))
        for log in self._logs:
            log(update)

    def close(self) -> None:
        """Flush and close the logs; closing twice is harmless."""
        for log in self._logs:
            log.close()
        self._logs = ()


def choose_folder(out: str | Path | None, *, algo: str, env: str, root: str | Path = "runs") -> Path:
    """Where a run's files go: `out` if given, else a new name under `root`. Nothing is made yet."""
    if out is not None:
        return _unused(Path(out))
    stem = Path(root) / safe_name(f"{algo}-{env}-{datetime.now():%Y%m%d-%H%M%S}")
    names = itertools.chain([stem], (stem.with_name(f"{stem.name}-{n}") for n in itertools.count(2)))
    return next(path for path in names if not path.exists())


def safe_name(text: str) -> str:
    """`text` with every run of characters that some file system dislikes turned into one dash."""
    return re.sub(r"[^A-Za-z0-9._]+", "-", text).strip("-.") or "run"


def describe_run(algo: Algorithm, world: World, **settings: Any) -> dict[str, Any]:
    """What `config.json` holds: algorithm and environment with all their settings, the run's own, and the versions."""
    fields = {field.name: _written(getattr(algo, field.name)) for field in dataclasses.fields(algo)}
    kind = type(algo)
    played = {"env": _written(world.source), "env_options": dict(world.options), "wrappers": world.wrappers}
    names = {"algo": name_of(algo), "class": f"{kind.__module__}:{kind.__qualname__}"}
    return {**names, "config": fields, **played, **settings, "weft": VERSION, "jax": jax.__version__}


def write_config(path: Path, config: Mapping[str, Any]) -> None:
    """Write `config` as JSON, all of it or nothing."""
    write_whole(path, (json.dumps(config, indent=2, default=str) + "\n").encode())


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that no reader, and no crash, ever sees a part of it."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(partial, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def _written(value: Any) -> Any:
    """A function or class by its name, from which it can be found again."""
    return f"{value.__module__}:{value.__qualname__}" if callable(value) else value


def _unused(path: Path) -> Path:
    if path.exists() and not path.is_dir():
        raise WeftError(f"the run's folder {path} is a file: give a folder that is empty or does not exist yet")
    if path.is_dir() and any(path.iterdir()):
        raise WeftError(
            f"the run's folder {path} already holds files: give a folder that is empty or does not exist yet"
        )
    return path
