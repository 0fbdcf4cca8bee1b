"""Tables are declared in a file or on the command line, and served by a command."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from weft.cli import main
from weft.errors import WeftError
from weft.replay.limiter import MinimumSize, Queue, SamplesPerInsert
from weft.replay.selectors import Fifo, MaxHeap, Prioritised
from weft.replay.server import connect
from weft.replay.server.declare import declare, declare_all, parse_options, read_tables

FILE = """
[tables.experience]
capacity = 100
sampler = "prioritised:0.7"
limiter = "samples_per_insert:4,10,100"
columns = { "obs/vector" = "float32[4]", "obs/image" = "uint8[2, 3]", reward = "float32" }

[tables.sequences]
capacity = 50
length = 3
rows = 2
steps = 80
remover = "maxheap"
columns = { reward = "float32" }

[tables.first]
capacity = 20
store = "sequences"
sampler = "fifo"
limiter = "queue:5"
max_times_sampled = 1
"""


def test_a_file_declares_tables(tmp_path):
    (tmp_path / "tables.toml").write_text(FILE)
    experience, sequences, first = read_tables(tmp_path / "tables.toml")
    assert isinstance(experience.sampler, Prioritised) and experience.sampler.exponent == 0.7
    assert experience.limiter == SamplesPerInsert(4.0, 10, 100.0)
    assert experience.store.column("obs/image").shape == (100, 2, 3)
    assert (sequences.length, sequences.store.rows, sequences.store.capacity) == (3, 2, 80)
    assert isinstance(sequences.remover, MaxHeap) and sequences.limiter == MinimumSize(1)
    assert first.store is sequences.store and first.limiter == Queue(5) and isinstance(first.sampler, Fifo)
    (tmp_path / "tables.json").write_text('{"tables": {"a": {"capacity": 5, "columns": {"x": "bool"}}}}')
    assert read_tables(tmp_path / "tables.json")[0].store.column("x").dtype == bool


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ([], "no capacity"),
        (["capacity=5"], "no columns"),
        (["capacity=many", "x=bool"], "capacity of table 'a' is 'many': expected an integer"),
        (["capacity=5", "x=text"], r"column 'x' of table 'a' is 'text': expected .* float32\[4\]"),
        (["capacity=5", "x=str[3]"], "column 'x'"),
        (["capacity=5", "x=bool", "sampler=best"], "unknown sampler of table 'a': 'best'"),
        (["capacity=5", "x=bool", "limiter=queue"], "limiter of table 'a' is 'queue': expected other numbers"),
        (["capacity=5", "x=bool", "limiter=minimum:9"], "requires 9 items"),
        (["capacity=5", "store=b"], "share a store with"),
        (["capacity"], "not of the form"),
    ],
)
def test_an_invalid_declaration_says_why(options, why):
    with pytest.raises(WeftError, match=why):
        declare("a", parse_options(options))


def test_a_file_without_valid_declarations_says_why(tmp_path):
    for text in ("", "[tables]", "[tables", "tables = 3"):
        (tmp_path / "t.toml").write_text(text)
        with pytest.raises(WeftError, match=r"declares no tables|cannot be read"):
            read_tables(tmp_path / "t.toml")
    with pytest.raises(WeftError, match="unknown option of table 'a'"):
        declare_all({"a": {"capcity": 5}})
    with pytest.raises(WeftError, match="expected options"):
        declare_all({"a": 5})


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        ([], "no tables are declared"),
        (["--table", "a", "capacity=5", "x=bool", "--sync"], "--checkpoint DIR"),
        (["--table", "a", "capacity=5", "x=bool", "--checkpoint", "c", "--every", "0"], "more than 0"),
        (["missing.toml"], "cannot be read"),
    ],
)
def test_invalid_arguments_are_reported(argv, why, capsys):
    assert main(["replay", "serve", *argv]) == 2
    assert why in capsys.readouterr().err


def start(*argv, **environment):
    command = [sys.executable, "-m", "weft", "replay", "serve", *argv]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment})
    line = process.stdout.readline().strip()
    return process, line


def stop(process):
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode == 0


def test_the_command_serves_tables_and_restores_them_after_a_restart(tmp_path):
    options = ("--table", "a", "capacity=100", "reward=float32", "--checkpoint", str(tmp_path / "saved"))
    token = tmp_path / "secret" / "token"
    process, line = start(*options, "--token-file", str(token))
    address = line.removeprefix("serving a at ").partition(",")[0]
    assert line == f"serving a at {address}, token in {token}" and address.startswith("127.0.0.1:")
    assert token.stat().st_mode & 0o077 == 0
    with connect(address, token_file=token) as client:
        keys = client.table("a").insert({"reward": np.arange(5, dtype=np.float32)})
        assert (tmp_path / "saved" / "checkpoint-000002").samefile(client.checkpoint())
        client.table("a").insert({"reward": np.arange(5, 9, dtype=np.float32)})
    stop(process)
    process, line = start(*options, WEFT_REPLAY_TOKEN="of-the-environment")
    assert line.endswith("token from WEFT_REPLAY_TOKEN")
    with connect(line.split()[3].rstrip(","), "of-the-environment") as client:
        assert client.table("a").size == 9 and (client.table("a").items(keys).key == keys).all()
    stop(process)
