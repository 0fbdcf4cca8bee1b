"""Checks that the benchmarks match the code that they measure, without running them."""

import ast
import importlib
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import weft
from weft.algos import load_algorithm
from weft.layout.catalogue import parse
from weft.settings import configure

BENCHMARKS = Path(weft.__file__).parents[1] / "benchmarks"
SCRIPTS = sorted(BENCHMARKS.rglob("*.py"))
LEARNING_RECORDS = json.loads((BENCHMARKS / "results" / "learning.json").read_text())


@pytest.fixture(autouse=True)
def benchmark_modules(monkeypatch: pytest.MonkeyPatch):
    """Lets the scripts import each other, and removes their modules after the test."""
    modules_before = set(sys.modules)
    monkeypatch.syspath_prepend(str(BENCHMARKS / "peers"))
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield
    for name in set(sys.modules) - modules_before:
        if is_below(BENCHMARKS, getattr(sys.modules[name], "__file__", None)):
            del sys.modules[name]


def is_below(folder: Path, file: str | None) -> bool:
    return file is not None and Path(file).is_relative_to(folder)


def learning() -> ModuleType:
    return importlib.import_module("learning")


def installed(module: str) -> bool:
    return importlib.util.find_spec(module.partition(".")[0]) is not None


def imported_modules(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    return names | {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: str(path.relative_to(BENCHMARKS)))
def test_every_benchmark_imports(path: Path):
    compile(path.read_text(), path, "exec")
    if all(installed(module) for module in imported_modules(path)):
        importlib.import_module(path.stem)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: str(path.relative_to(BENCHMARKS)))
def test_names_that_a_benchmark_imports_from_weft_exist(path: Path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == "weft":
            module = importlib.import_module(node.module)
            for alias in node.names:
                assert hasattr(module, alias.name) or installed_submodule(node.module, alias.name), alias.name


def installed_submodule(package: str, name: str) -> bool:
    return importlib.util.find_spec(f"{package}.{name}") is not None


def test_learning_rows_have_settings_and_layouts_that_exist():
    for row in learning().ROWS:
        algo = configure(load_algorithm(row.algo), row.settings)
        assert isinstance(algo, weft.Algorithm)
        parse(row.layout)
        if row.dataset:
            configure(load_algorithm(row.dataset.algo), row.dataset.settings)


def test_learning_rows_have_unique_names():
    names = [row.name for row in learning().ROWS]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("record", LEARNING_RECORDS, ids=lambda record: record["name"])
def test_every_learning_record_belongs_to_a_row(record: dict[str, Any]):
    rows = {row.name: row for row in learning().ROWS}
    row = rows[record["name"]]
    assert (row.target, row.should_fail, row.evaluated) == (
        record["target"],
        record["should_fail"],
        record["evaluated"],
    )
    assert list(row.seeds) == record["seeds"]


@pytest.mark.parametrize("name", ["async", "core-cpu-64", "core-gpu-64", "core-gpu-2048", "envs", "learning", "replay"])
def test_committed_table_is_the_one_that_the_script_writes(name: str):
    script = importlib.import_module(name.partition("-")[0])
    record = json.loads((BENCHMARKS / "results" / f"{name}.json").read_text())
    table = script.report(record) if name == "replay" else script.table(record)
    text = table if isinstance(table, str) else "\n".join(table) + "\n"
    assert text == (BENCHMARKS / "results" / f"{name}.md").read_text()
