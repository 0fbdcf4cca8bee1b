"""The public names exist, are imported when first used, and have no side effects."""

import subprocess
import sys
from pathlib import Path

import pytest

import weft

QUIET = """
import os
before = dict(os.environ)
import weft, weft.cli, weft.commands
for name in weft.__all__:
    getattr(weft, name)
from jax._src import xla_bridge
assert dict(os.environ) == before, "the environment changed"
assert not xla_bridge.backends_are_initialized(), "a device was touched"
"""


def test_every_public_name_exists():
    assert sorted(weft.__all__) == weft.__all__
    assert all(hasattr(weft, name) for name in weft.__all__)
    assert callable(weft.fragment) and callable(weft.layouts.seed)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'weft' has no attribute 'trian'"):
        weft.trian  # noqa: B018


def test_public_names_are_imported_when_first_used():
    code = "import sys, weft; assert 'jax' not in sys.modules; weft.Layout; assert 'jax' not in sys.modules; weft.train"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_submodule_does_not_hide_a_public_name():
    code = "import weft.algos.ppo, weft, types; assert not isinstance(weft.fragment, types.ModuleType)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_package_declares_its_type_hints():
    assert (Path(weft.__file__).parent / "py.typed").is_file()


def test_importing_has_no_side_effects():
    done = subprocess.run([sys.executable, "-c", QUIET], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
