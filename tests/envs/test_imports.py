"""Importing the interface of environments loads no adapter and no library; the registry names the adapters."""

import importlib
import subprocess
import sys

import pytest

from weft.envs.registry import ADAPTERS

LIBRARIES = ("gymnax", "brax", "envpool", "ale_py", "mujoco")


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
