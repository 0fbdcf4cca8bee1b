"""Import layers: environments < replay < datasets < algorithms < graph, without cycles inside replay and datasets."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import weft

ROOT = Path(weft.__file__).parent
FORBIDDEN = {
    "replay": ("replay.server", "datasets", "envs", "algorithm", "algos", "graph", "project", "runtime", "run"),
    "datasets": ("replay.server", "algorithm", "algos", "graph", "project", "runtime", "run"),
}


def modules_of(package: str) -> dict[str, Path]:
    """The modules directly in a package, by name."""
    return {f"weft.{package}.{path.stem}": path for path in (ROOT / package).glob("*.py") if path.stem != "__init__"}


def imported(path: Path) -> set[str]:
    """The names that a file imports anywhere, also inside functions."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names


@pytest.mark.parametrize("package", FORBIDDEN)
def test_a_package_imports_only_lower_layers(package: str) -> None:
    layers = tuple(f"weft.{layer}" for layer in FORBIDDEN[package])
    for name, path in modules_of(package).items():
        assert not [other for other in imported(path) if any(f"{other}.".startswith(f"{each}.") for each in layers)], (
            name
        )


def test_the_modules_import_each_other_without_cycles() -> None:
    modules = modules_of("replay") | modules_of("datasets")
    graph = {name: imported(path) & modules.keys() for name, path in modules.items()}
    assert "weft.datasets.minari" in graph["weft.datasets.load"]
    TopologicalSorter(graph).prepare()  # raises CycleError
