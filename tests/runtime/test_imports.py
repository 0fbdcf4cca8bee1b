"""The modules of the runtime import each other without cycles, and import nothing that is built on top of them."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import weft.runtime

FOLDER = Path(weft.runtime.__path__[0])
PACKAGE = "weft.runtime"


def imported_modules(path: Path) -> set[str]:
    """The modules that a file imports, wherever in the file the import is."""
    modules: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module == PACKAGE:
            modules |= {f"{PACKAGE}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules.add(node.module)
    return modules


IMPORTS = {f"{PACKAGE}.{path.stem}": imported_modules(path) for path in FOLDER.glob("*.py")}


def test_the_runtime_has_no_import_cycles() -> None:
    inside = {name: {module for module in modules if module in IMPORTS} for name, modules in IMPORTS.items()}
    assert inside["weft.runtime.driver"] >= {"weft.runtime.local", "weft.runtime.meter"}
    TopologicalSorter(inside).prepare()


def test_the_runtime_does_not_import_evaluation_or_the_command_line() -> None:
    imported = set().union(*IMPORTS.values())
    above = ("weft.evaluation", "weft.cli", "weft.run")
    assert not [module for module in imported if module in above or module.startswith(tuple(f"{a}." for a in above))]
