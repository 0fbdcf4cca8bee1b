"""A run's folder: its configuration, its metrics and its trained parameters.

    runs/ppo-gymnax-CartPole-v1-20250102-030405/
        config.json          the configuration, complete enough to repeat the run
        metrics.jsonl        one line per iteration
        evals.jsonl          one line per evaluation, if there are any
        system.jsonl         about one line per second on times and traffic, if there are several roles or replicas
        events.out.tfevents  the same for TensorBoard
        params.safetensors   the trained parameters

In an asynchronous layout each line of `metrics.jsonl` also has `lag` and `lag_max`: the mean and the largest lag of the
work that the consumer took in that iteration. A line of `system.jsonl` covers the time since the previous line; the
last one, where `total` is true, covers the whole run. It has these keys (see `weft.report.system`):

    steps, seconds, total, over_s             the time of the reading, and the number of seconds that it covers
    role/ROLE/computing, waiting, sending     fractions of the time of all replicas: they add up to 1
    edge/FROM-to-TO/KIND/messages_per_s       KIND is stream, register, lanes, begin, merge, batch or report; each has
                         bytes_per_s          only the numbers that apply to it
                         depth, depth_max     messages sent but not yet received: now, and the largest number
                         sender_waits_s       seconds that the replicas of FROM waited, summed
                         receiver_waits_s     seconds that the replicas of TO waited, summed
    lag/mean, lag/max, lag/counts             of the work that the consumer took; counts are by lag
    batch/ROLE/counts                         the number of batched calls by batch size

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
    """An observer that writes the run's folder. The first update creates it, so a rejected run leaves no files."""

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
    """Returns the folder for a run's files: `out` if given, else a new name under `root`. Does not create it."""
    if out is not None:
        return _unused(Path(out))
    stem = Path(root) / safe_name(f"{algo}-{env}-{datetime.now():%Y%m%d-%H%M%S}")
    names = itertools.chain([stem], (stem.with_name(f"{stem.name}-{n}") for n in itertools.count(2)))
    return next(path for path in names if not path.exists())


def safe_name(text: str) -> str:
    """Returns `text` with each sequence of characters that are unsafe in file names replaced by one dash."""
    return re.sub(r"[^A-Za-z0-9._]+", "-", text).strip("-.") or "run"


def describe_run(algo: Algorithm, world: World, **settings: Any) -> dict[str, Any]:
    """Returns the contents of `config.json`: the algorithm, the environment, the run's settings, and versions."""
    fields = {field.name: _name_of_callable(getattr(algo, field.name)) for field in dataclasses.fields(algo)}
    kind = type(algo)
    env = {"env": _name_of_callable(world.source), "env_options": dict(world.options), "wrappers": world.wrappers}
    names = {"algo": name_of(algo), "class": f"{kind.__module__}:{kind.__qualname__}"}
    return {**names, "config": fields, **env, **settings, "weft": VERSION, "jax": jax.__version__}


def write_config(path: Path, config: Mapping[str, Any]) -> None:
    """Write `config` as JSON, atomically."""
    write_atomically(path, (json.dumps(config, indent=2, default=str) + "\n").encode())


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file such that neither a reader nor a crash sees a partial file."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(partial, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def _name_of_callable(value: Any) -> Any:
    """Returns `module:name` for a function or class, and any other value unchanged."""
    return f"{value.__module__}:{value.__qualname__}" if callable(value) else value


def _unused(path: Path) -> Path:
    if path.exists() and not path.is_dir():
        raise WeftError(f"the run's folder {path} is a file: give a folder that is empty or does not exist yet")
    if path.is_dir() and any(path.iterdir()):
        raise WeftError(
            f"the run's folder {path} already holds files: give a folder that is empty or does not exist yet"
        )
    return path
