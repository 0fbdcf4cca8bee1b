"""Imports inside `weft.envs`: adapters import pools, pools the interface, and only the registry names adapters."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import weft.envs
from weft.envs.registry import ADAPTERS

ROOT = Path(weft.envs.__file__).parent
LIBRARIES = ("gymnax", "brax", "envpool", "ale_py", "mujoco")
FORBIDDEN = {
    "": ("weft.envs.pools", "weft.envs.adapters"),
    "wrappers": ("weft.envs.pools", "weft.envs.adapters", "weft.envs.registry", "weft.envs.world"),
    "pools": ("weft.envs.adapters", "weft.envs.wrappers", "weft.envs.registry", "weft.envs.world"),
    "adapters": ("weft.envs.wrappers", "weft.envs.registry", "weft.envs.world"),
}


def imported_modules(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
    names = {
        f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    return modules | names


@pytest.mark.parametrize("package", FORBIDDEN)
def test_a_package_imports_only_packages_below_it(package: str) -> None:
    for path in (ROOT / package).glob("*.py"):
        for module in imported_modules(path):
            assert not module.startswith(FORBIDDEN[package]), f"{path.name} imports {module}"


def test_importing_the_interface_imports_no_adapter_and_no_library() -> None:
    code = f"""
import sys, weft.envs, weft.envs.timestep, weft.envs.world
loaded = [name for name in sys.modules if name.startswith(("weft.envs.adapters", "weft.envs.pools"))]
print(loaded + [name for name in {LIBRARIES} if name in sys.modules])
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize("family", ADAPTERS)
def test_every_adapter_has_the_two_functions_of_the_registry(family: str) -> None:
    adapter = importlib.import_module(ADAPTERS[family])
    assert callable(adapter.make) and callable(adapter.available)
