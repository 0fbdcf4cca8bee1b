"""What may know of what, and how long a file may be: the rules that keep algorithms and layouts apart."""

import ast
from pathlib import Path

import pytest

import weft

ROOT = Path(weft.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))
ALGORITHMS = sorted((ROOT / "algos").glob("*.py"))
LAYOUTS = sorted((ROOT / "layout").glob("*.py"))
RUNTIME = sorted((ROOT / "runtime").glob("*.py"))
PLACEMENT = ("threading", "multiprocessing", "concurrent", "queue", "ray", "jax.sharding", "jax.experimental.shard_map")


def label(path: Path) -> str:
    return str(path.relative_to(ROOT))


def imports(path: Path) -> set[str]:
    """Every module that a file names: imported, or reached through an imported one (`jax.sharding.Mesh`)."""
    tree = ast.parse(path.read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Attribute):
            names.add(ast.unparse(node))
    return names


def reaches(names: set[str], module: str) -> bool:
    return any(name == module or name.startswith(module + ".") for name in names)


@pytest.mark.parametrize("path", ALGORITHMS, ids=label)
def test_an_algorithm_knows_nothing_of_placement(path):
    names = imports(path)
    assert not [module for module in PLACEMENT if reaches(names, module)]
    assert not [part for part in ("layout", "project", "runtime", "graph") if reaches(names, f"weft.{part}")]


@pytest.mark.parametrize("path", LAYOUTS, ids=label)
def test_a_layout_knows_no_algorithm(path):
    assert not reaches(imports(path), "weft.algos")


@pytest.mark.parametrize("path", RUNTIME, ids=label)
def test_the_runtime_does_not_import_evaluation(path):
    assert not reaches(imports(path), "weft.evaluation")


@pytest.mark.parametrize("path", ALGORITHMS, ids=label)
def test_an_algorithm_is_at_most_200_lines(path):
    assert len(path.read_text().splitlines()) <= 200


@pytest.mark.parametrize("path", MODULES, ids=label)
def test_a_module_is_at_most_500_lines_and_says_what_it_is(path):
    text = path.read_text()
    assert len(text.splitlines()) <= 500
    assert path.name == "__init__.py" or ast.get_docstring(ast.parse(text))


@pytest.mark.parametrize(
    ("source", "module", "found"),
    [
        ("import queue", "queue", True),
        ("from jax import sharding", "jax.sharding", True),
        ("import jax\njax.sharding.Mesh", "jax.sharding", True),
        ("import rayon", "ray", False),
    ],
)
def test_imports_are_seen_however_they_are_written(tmp_path, source, module, found):
    (tmp_path / "m.py").write_text(source)
    assert reaches(imports(tmp_path / "m.py"), module) is found
