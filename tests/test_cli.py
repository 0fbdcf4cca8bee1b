"""The command line: its output and its exit codes."""

import json
import subprocess
import sys

import pytest

from weft import commands
from weft.cli import CHECKPOINT_SECONDS, GRAPH_FORMATS, TOKEN_FILE, main
from weft.project.printer import FORMATS
from weft.replay.server import serve

ENV = "gymnax:CartPole-v1"
SHORT = ["--set", "num_envs=4", "horizon=8", "--steps", "320"]


def error_of(capsys, *argv):
    """Returns the one-line error of a command that is rejected."""
    assert main(argv) == 2
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert captured.out == "" and line.startswith("weft: error: ")
    return line.removeprefix("weft: error: ")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["trian"], "invalid choice: 'trian'"),
        (["train"], "the following arguments are required: ALGO, ENV"),
        (["train", "ppoo", ENV], "unknown algorithm 'ppoo': did you mean 'ppo' or 'appo'?"),
        (["train", "nowhere:Thing", ENV], "no module named 'nowhere'"),
        (["train", "weft.algos:Thing", ENV], "unknown class in weft.algos 'Thing'"),
        (["train", "weft.errors:WeftError", ENV], "weft.errors:WeftError is not an algorithm"),
        (["train", "weft.algorithm:Algorithm", ENV], "it must define init and step"),
        (["train", ":PPO", ENV], "'' is not a module's name"),
        (["train", "ppo", "gymnax:CartPol-v1"], "did you mean 'CartPole-v1'"),
        (["train", "ppo", ENV, "--layout", "fusd"], "unknown layout 'fusd': did you mean 'fused'"),
        (["train", "ppo", ENV, "--layout", "actors:actor=2"], "unknown option of layout actors 'actor'"),
        (["train", "ppo", ENV, "--set", "lrr=1"], "unknown field of PPO 'lrr': did you mean 'lr'"),
        (["train", "ppo", ENV, "--set", "lr=fast"], "lr takes a number, not 'fast'"),
        (["train", "ppo", ENV, "--steps", "many"], "argument --steps: 'many' is not a whole number"),
        (["train", "ppo", ENV, "--steps", "0"], "argument --steps: '0' is not a whole number from 1"),
        (["train", "ppo", ENV, "--seed", "-1"], "argument --seed: '-1' is not a whole number from 0"),
        (["train", "ppo", ENV, "--step", "10"], "unrecognized arguments: --step 10"),
        (["train", "ppo", ENV, "--engine", "locl"], "unknown engine 'locl': did you mean 'local'?"),
        (["check", "ppo", ENV], "the following arguments are required: --layout"),
        (["graph", "ppo", ENV, "--format", "png"], "invalid choice: 'png'"),
    ],
)
def test_a_user_error_is_one_line_and_exit_code_2(capsys, tmp_path, monkeypatch, argv, message):
    monkeypatch.chdir(tmp_path)
    assert message in error_of(capsys, *argv)
    assert not list(tmp_path.iterdir())


def test_a_folder_with_files_is_rejected(capsys, tmp_path):
    (tmp_path / "old").touch()
    assert "already holds files" in error_of(capsys, "train", "a2c", ENV, *SHORT, "--out", str(tmp_path))


def test_json_is_the_last_line_of_standard_output(capsys, tmp_path):
    assert main(["train", "a2c", ENV, *SHORT, "--seed", "5", "--json", "--out", str(tmp_path / "run")]) == 0
    captured = capsys.readouterr()
    record = json.loads(captured.out.splitlines()[-1])
    assert {"algo": "a2c", "env": ENV, "engine": "local", "seed": 5, "steps": 320}.items() <= record.items()
    assert record["iterations"] == 10 and record["out"] == str(tmp_path / "run")
    assert "320 steps" in captured.err


def test_train_prints_a_summary(capsys, tmp_path):
    assert main(["train", "a2c", ENV, *SHORT, "--out", str(tmp_path / "run")]) == 0
    out = capsys.readouterr().out
    assert "return  " in out and "steps/s" in out and str(tmp_path / "run") in out


def test_a_user_defined_algorithm_is_trained_by_its_module_and_class(capsys, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("from weft.algos.a2c import A2C\nclass Mine(A2C): pass\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert main(["train", "mine:Mine", ENV, *SHORT, "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["algo"] == "mine"


def test_an_error_in_a_users_module_keeps_its_traceback(tmp_path, monkeypatch):
    (tmp_path / "broken.py").write_text("import no_such_library\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(ModuleNotFoundError, match="no_such_library"):
        main(["train", "broken:Mine", ENV])


def test_an_interrupt_is_one_line_and_exit_code_130(capsys, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(commands, "train", interrupt)
    assert main(["train", "a2c", ENV]) == 130
    assert capsys.readouterr().err == "weft: interrupted\n"


def test_check_reports_that_the_layouts_are_identical(capsys):
    argv = ["check", "a2c", ENV, "--layout", "actors", "--iterations", "3", "--set", "num_envs=4", "horizon=4"]
    assert main(argv) == 0
    assert capsys.readouterr().out.startswith("identical")


@pytest.mark.parametrize("form", ["text", "mermaid", "json"])
def test_graph_prints_roles(capsys, form):
    assert main(["graph", "a2c", ENV, "--layout", "actors", "--format", form]) == 0
    out = capsys.readouterr().out
    assert "actor" in out and "learner" in out
    if form == "json":
        json.loads(out)


@pytest.mark.parametrize(
    ("command", "expected"), [("algos", "ppo"), ("layouts", "actors:actors=1"), ("envs", "gymnax:CartPole-v1")]
)
def test_lists_are_aligned_lines(capsys, command, expected):
    assert main([command]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = [line.split()[0] for line in lines]
    assert expected in names
    width = max(map(len, names)) + 2
    assert all(line[width - 2 : width] == "  " and line[width] != " " for line in lines)


WITHOUT_JAX = """
import contextlib, io, sys
from weft.cli import main

for argv in (
    ["--help"],
    ["--version"],
    *([command, "--help"] for command in ("train", "check", "graph", "eval", "replay", "algos", "layouts", "envs")),
    ["replay", "serve", "--help"],
    [],
    ["trian"],
    ["train"],
    ["train", "ppo", "gymnax:CartPole-v1", "--steps", "many"],
):
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        with contextlib.suppress(SystemExit):
            main(argv)
    loaded = [name for name in ("jax", "numpy", "gymnasium", "equinox") if name in sys.modules]
    assert not loaded, f"weft {' '.join(argv)} imports {loaded}"
"""


def test_help_version_and_usage_errors_import_neither_jax_nor_numpy():
    done = subprocess.run([sys.executable, "-c", WITHOUT_JAX], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_help_agrees_with_the_modules_it_does_not_import():
    assert tuple(FORMATS) == GRAPH_FORMATS
    assert str(serve.TOKEN_FILE) == TOKEN_FILE
    assert serve.CHECKPOINT_SECONDS == CHECKPOINT_SECONDS


def test_version(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0 and capsys.readouterr().out.startswith("weft ")


def test_the_command_runs_as_a_module():
    done = subprocess.run([sys.executable, "-m", "weft", "train"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and done.stderr.startswith("weft: error: ") and done.stderr.count("\n") == 1


def test_a_closed_pipe_is_not_an_error():
    command = f"{sys.executable} -c 'import sys; from weft.cli import main; sys.exit(main([\"envs\"]))' | head -n 1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, timeout=120)
    assert done.stderr == "" and len(done.stdout.splitlines()) == 1
