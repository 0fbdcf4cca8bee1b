"""What the documentation shows is what the code prints."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from tests.matrix import TABLES

DOCS = Path(__file__).parents[1] / "docs"


@pytest.fixture
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("example", DOCS / "example.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_print_has_its_place(example: ModuleType) -> None:
    page = (DOCS / "how-it-works.md").read_text()
    assert all(f"<!-- print: {name} -->" in page for name in example.PRINTS)


def test_every_table_has_its_place() -> None:
    page = (DOCS / "layouts.md").read_text()
    assert all(f"<!-- table: {name} -->" in page for name in TABLES)


def test_the_pages_show_what_the_code_prints(example: ModuleType) -> None:
    for path in example.PAGES:
        page = path.read_text()
        assert example.fill(page) == page, f"{path.name} is old: run python docs/example.py"
