"""The generated parts of the documentation are up to date. `test_refusals.py` checks the page with the matrix."""

from pathlib import Path

import pytest

from tests import layers
from tests.documentation import DOCS, assert_up_to_date, generator

PAGES = [path for path in generator().PAGES if path.name != "layouts.md"]


def test_every_print_is_in_the_documentation() -> None:
    page = (DOCS / "how-it-works.md").read_text()
    assert all(f"<!-- print: {name} -->" in page for name in generator().PRINTS)


def test_every_table_of_the_packages_is_on_the_map() -> None:
    page = (DOCS / "map.md").read_text()
    assert all(f"<!-- table: {name} -->" in page for name in layers.TABLES)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_a_page_shows_what_the_code_prints(path: Path) -> None:
    assert_up_to_date(path)
