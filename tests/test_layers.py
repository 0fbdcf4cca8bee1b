"""Imports go one way: no package and no module imports itself through others, and packages keep to their table."""

from pathlib import Path

import pytest

from tests.layers import PACKAGES, cycle, module_imports, package_imports, package_of, sources


def test_every_module_belongs_to_a_package_and_every_package_has_modules() -> None:
    assert {package_of(module) for module in sources()} == set(PACKAGES)


def test_no_modules_import_each_other_in_a_cycle() -> None:
    assert not cycle(module_imports())


def test_no_packages_import_each_other_in_a_cycle() -> None:
    assert not cycle(package_imports())
    assert not cycle({name: package.imports for name, package in PACKAGES.items()})


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_imports_exactly_the_packages_of_its_table(name: str) -> None:
    assert package_imports()[name] == set(PACKAGES[name].imports), "correct tests/layers.py, or the import"


def test_an_import_inside_a_function_closes_a_cycle(tmp_path: Path) -> None:
    imports = "def stairs():\n    from house.attic import window"
    assert set(cycle(_imports_of_a_house(tmp_path / "one", cellar=imports))) == {"house.attic", "house.cellar"}
    assert not cycle(_imports_of_a_house(tmp_path / "other", cellar="import os"))


def _imports_of_a_house(folder: Path, *, cellar: str) -> dict[str, frozenset[str]]:
    """The imports of a package `house` with two modules: `attic` imports `cellar`."""
    root = folder / "house"
    root.mkdir(parents=True)
    (root / "attic.py").write_text("from house import cellar")
    (root / "cellar.py").write_text(cellar)
    return module_imports(root)
