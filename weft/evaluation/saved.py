"""Opens the folder of a finished run: its algorithm, its environments and its trained parameters."""

import dataclasses
import json
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.algorithm import Algorithm
from weft.algos import load_algorithm
from weft.envs.world import World
from weft.errors import WeftError
from weft.evaluation.trained_params import TrainedParams, TrainedParamsSchema
from weft.report.files import CONFIG, PARAMS
from weft.settings import read_value


@dataclass(frozen=True)
class SavedRun:
    """A finished run, read from its folder."""

    path: Path
    algo: Algorithm
    world: World
    steps: int

    @classmethod
    def open(cls, path: str | Path) -> "SavedRun":
        folder = Path(path)
        config = _read_config(folder / CONFIG)
        try:
            world = World.of(config["env"], config["env_options"], config["wrappers"])
            return cls(folder, _algorithm(config), world, config["steps"])
        except KeyError as error:
            raise WeftError(f"{folder / CONFIG} lacks {error}: it was written by another version of weft") from None

    def load_params(self) -> TrainedParams:
        return TrainedParamsSchema(self.algo, self.world).load(self.path / PARAMS)


def _algorithm(config: dict[str, Any]) -> Algorithm:
    kind = load_algorithm(config["class"])
    fields = {field.name for field in dataclasses.fields(kind)}
    if unknown := sorted(set(config["config"]) - fields):
        raise WeftError(f"the run set {', '.join(unknown)}, which {config['class']} no longer has")
    types = typing.get_type_hints(kind)
    return kind(**{name: _from_json(value, types[name]) for name, value in config["config"].items()})


def _from_json(value: Any, kind: Any) -> Any:
    """The setting of type `kind` that `config.json` holds as `value`."""
    if isinstance(value, str):
        return read_value(value, kind)
    return tuple(value) if isinstance(value, list) else value


def _read_config(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise WeftError(f"{path.parent} is not a run's folder: it has no {path.name}") from None
    except json.JSONDecodeError as error:
        raise WeftError(f"{path} is not valid JSON, so weft did not write it: {error}") from None
