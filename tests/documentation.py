"""The pages with generated parts, and `docs/example.py`, which generates them."""

import importlib.util
from functools import cache
from pathlib import Path
from types import ModuleType

DOCS = Path(__file__).parents[1] / "docs"


@cache
def generator() -> ModuleType:
    """The module `docs/example.py`."""
    spec = importlib.util.spec_from_file_location("example", DOCS / "example.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def assert_up_to_date(path: Path) -> None:
    page = path.read_text()
    assert generator().fill(page) == page, f"{path.name} is out of date: run python docs/example.py"
