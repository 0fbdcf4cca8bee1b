"""The modules of the replay server have no import cycles, and importing the command starts nothing."""

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import weft.replay.server

FOLDER = Path(weft.replay.server.__file__).parent
PACKAGE = weft.replay.server.__name__


def imported_modules(path):
    """The modules of the package that a file imports anywhere, also in functions and for type checking."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    modules = {module.stem for module in FOLDER.glob("*.py")}
    return {name.removeprefix(f"{PACKAGE}.") for name in names if name.startswith(f"{PACKAGE}.")} & modules


def test_the_modules_import_each_other_without_cycles():
    graph = {path.stem: imported_modules(path) for path in FOLDER.glob("*.py")}
    assert "socket_server" in graph["serve"]
    TopologicalSorter(graph).prepare()  # raises CycleError


PROGRAM = """
import sys, threading
events = []
sys.addaudithook(lambda event, arguments: events.append(event))
import weft.replay.server.serve
assert "socket.__new__" not in events and "subprocess.Popen" not in events
assert threading.active_count() == 1
"""


def test_importing_the_command_opens_no_socket_and_starts_no_thread_or_process():
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)
