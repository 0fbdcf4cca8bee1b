"""A finished run, read back from its folder: what was trained, on what, and what it learned."""

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
from weft.evaluation.learned import Learned, Learning
from weft.report.files import CONFIG, PARAMS
from weft.settings import read_value


@dataclass(frozen=True)
class SavedRun:
    """An algorithm with its settings, its environments, and where its parameters are."""

    path: Path
    algo: Algorithm
    world: World
    steps: int

    @classmethod
    def open(cls, path: str | Path) -> "SavedRun":
        """The run in a folder."""
        folder = Path(path)
        config = _read(folder / CONFIG)
        try:
            world = World.of(config["env"], config["env_options"], config["wrappers"])
            return cls(folder, _algorithm(config), world, config["steps"])
        except KeyError as error:
            raise WeftError(f"{folder / CONFIG} lacks {error}: it was written by another version of weft") from None

    def learned(self) -> Learned:
        """What the run learned."""
        return Learning(self.algo, self.world).load(self.path / PARAMS)


def _algorithm(config: dict[str, Any]) -> Algorithm:
    kind = load_algorithm(config["class"])
    known = {field.name for field in dataclasses.fields(kind)}
    if strange := sorted(set(config["config"]) - known):
        raise WeftError(f"the run set {', '.join(strange)}, which {config['class']} no longer has")
    kinds = typing.get_type_hints(kind)
    return kind(**{name: _value(value, kinds[name]) for name, value in config["config"].items()})


def _value(written: Any, kind: Any) -> Any:
    """A setting as it was before it was written down."""
    if isinstance(written, str):
        return read_value(written, kind)
    return tuple(written) if isinstance(written, list) else written


def _read(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise WeftError(f"{path.parent} is not a run's folder: it has no {path.name}") from None
    except json.JSONDecodeError as error:
        raise WeftError(f"{path} is not what weft wrote: {error}") from None
