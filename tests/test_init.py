"""The public names are there, and importing them does nothing else."""

import subprocess
import sys

import weft

QUIET = """
import os
before = dict(os.environ)
import weft, weft.cli
from jax._src import xla_bridge
assert dict(os.environ) == before, "the environment changed"
assert not xla_bridge.backends_are_initialized(), "a device was touched"
"""


def test_every_public_name_exists():
    assert sorted(weft.__all__) == weft.__all__
    assert all(hasattr(weft, name) for name in weft.__all__)
    assert callable(weft.fragment) and callable(weft.layouts.seed)


def test_importing_does_nothing():
    done = subprocess.run([sys.executable, "-c", QUIET], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
