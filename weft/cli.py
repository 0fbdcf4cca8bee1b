"""The command line: parses the arguments of `weft` and runs a command of `weft.commands`.

A user error ends with one line on standard error and exit code 2, without a traceback. This module does not import
JAX, so that help and usage errors are immediate.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from weft.errors import WeftError
from weft.settings import DEFAULT_STEPS, read_value
from weft.version import VERSION

INTERRUPTED = 130
LARGEST_SEED = 2**32 - 1
# Named here because the modules that define them import JAX or NumPy.
GRAPH_FORMATS = ("text", "mermaid", "json")
TOKEN_FILE = "~/.weft/replay-token"
CHECKPOINT_SECONDS = 600


def console() -> NoReturn:
    """The `weft` command: runs `main` and exits the process with its exit code."""
    code = main()
    if code == INTERRUPTED:
        # Threads of XLA may still be running, and crash if the interpreter shuts down before them.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Exit codes: 0, 1 (`check` found a difference), 2 (user error), 130 (interrupted)."""
    try:
        args = _parser().parse_args(argv)
        code = _run_command(args)
        sys.stdout.flush()
        return code
    except WeftError as error:
        print(f"weft: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("weft: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader (`| head`) has closed the pipe. Without this, Python would report the error again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _run_command(args: argparse.Namespace) -> int:
    # Imported here because it imports JAX.
    from weft.commands import COMMANDS

    return COMMANDS[args.command](args)


class _Parser(argparse.ArgumentParser):
    """Reports usage errors like all other user errors, in one line."""

    def error(self, message: str) -> NoReturn:
        raise WeftError(f"{message} (see {self.prog} --help)")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="weft", description="Distributed reinforcement learning: one loop, any layout.")
    parser.add_argument("--version", action="version", version=f"weft {VERSION}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _add_train(commands)
    _add_check(commands)
    _add_graph(commands)
    _add_eval(commands)
    _add_replay(commands)
    _add_command(commands, "algos", about="list the algorithms, one per line")
    _add_command(commands, "layouts", about="list the layouts, one per line")
    envs = _add_command(commands, "envs", about="list the environments, one per line")
    envs.add_argument("filter", nargs="?", default="", metavar="TEXT", help="only names that contain TEXT")
    return parser


def _add_train(commands: Any) -> None:
    parser = _add_training_command(commands, "train", about="train an algorithm on an environment")
    parser.add_argument(
        "--layout", default="fused", metavar="NAME[:k=v,...]|MODULE:NAME", help="which role runs what (default: fused)"
    )
    parser.add_argument("--engine", default="local", help="the runtime that executes the roles (default: local)")
    parser.add_argument(
        "--steps",
        type=_count,
        default=DEFAULT_STEPS,
        help=f"environment steps, rounded up to whole iterations (default: {DEFAULT_STEPS})",
    )
    _add_seed(parser)
    parser.add_argument("--out", metavar="DIR", help="folder for the run's files (default: runs/<algo>-<env>-<time>)")
    parser.add_argument("--eval-every", type=_count, metavar="N", help="evaluate every N steps, while training goes on")
    parser.add_argument("--eval-episodes", type=_count, default=10, help="episodes per evaluation (default: 10)")
    parser.add_argument("--record", metavar="DIR", help="record every step in a new dataset, for offline training")
    _add_cache(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line of standard output")


def _add_check(commands: Any) -> None:
    parser = _add_training_command(commands, "check", about="compare a layout with the fused program, bit for bit")
    against = "the layout to compare with (default: fused; for an asynchronous layout, its synchronous form)"
    parser.add_argument("--against", metavar="NAME[:k=v,...]|MODULE:NAME", help=against)
    parser.add_argument("--layout", required=True, metavar="NAME[:k=v,...]|MODULE:NAME", help="the layout to check")
    parser.add_argument("--iterations", type=_count, default=10, help="iterations to run (default: 10)")
    _add_seed(parser)
    _add_cache(parser)


def _add_graph(commands: Any) -> None:
    parser = _add_training_command(commands, "graph", about="print the roles, their programs, and their edges")
    parser.add_argument(
        "--layout", default="fused", metavar="NAME[:k=v,...]|MODULE:NAME", help="the layout to print (default: fused)"
    )
    parser.add_argument("--format", choices=GRAPH_FORMATS, default="text", help="(default: text)")


def _add_eval(commands: Any) -> None:
    parser = _add_command(commands, "eval", about="evaluate the policy of a finished run")
    parser.add_argument("run", metavar="RUN", help="the run's folder")
    parser.add_argument("--episodes", type=_count, default=10, help="episodes to play (default: 10)")
    parser.add_argument(
        "--sample", action="store_true", help="sample actions, as training does, instead of taking the most likely ones"
    )
    parser.add_argument("--video", metavar="FILE", help="write a video of the episodes, as .mp4 or .gif")
    parser.add_argument("--record", metavar="DIR", help="record the episodes in a new dataset, for offline training")
    _add_seed(parser)
    _add_cache(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def _add_replay(commands: Any) -> None:
    about = "serve replay tables to other processes"
    replay = commands.add_parser("replay", help=about, description=about.capitalize() + ".")
    parser = _add_command(replay.add_subparsers(metavar="COMMAND", required=True), "serve", about=about)
    parser.set_defaults(command="replay serve")
    parser.add_argument("file", nargs="?", metavar="FILE", help="TOML or JSON file that declares tables")
    options = ("NAME", "option=value")
    parser.add_argument("--table", nargs="+", action="append", default=[], metavar=options, help="declare a table")
    parser.add_argument(
        "--address", default="127.0.0.1:0", metavar="HOST:PORT", help="(default: 127.0.0.1, a free port)"
    )
    parser.add_argument("--token-file", metavar="FILE", help=f"created if it does not exist (default: {TOKEN_FILE})")
    parser.add_argument("--checkpoint", metavar="DIR", help="save the tables here, and restore them on start-up")
    interval = f"seconds between checkpoints (default: {CHECKPOINT_SECONDS})"
    parser.add_argument("--every", type=float, metavar="S", help=interval)
    parser.add_argument("--sync", action="store_true", help="acknowledge changes only when they are on the disk")


def _add_training_command(commands: Any, name: str, *, about: str) -> argparse.ArgumentParser:
    """Adds a command with the arguments that describe an algorithm and its environment."""
    parser = _add_command(commands, name, about=about)
    parser.add_argument("algo", metavar="ALGO", help="a name from `weft algos`, or your own class as module:Class")
    parser.add_argument("env", metavar="ENV", help="a name from `weft envs`, or your own as module:attribute")
    parser.add_argument("--set", nargs="+", action="extend", default=[], metavar="field=value", help="settings of ALGO")
    parser.add_argument("--dataset", metavar="DIR", help="dataset for an offline ALGO: a folder, or minari:ID")
    parser.add_argument(
        "--env-set", nargs="+", action="extend", default=[], metavar="option=value", help="options of ENV"
    )
    parser.add_argument(
        "--wrap",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME[=value]",
        help="wrappers of ENV, innermost first",
    )
    parser.add_argument("--on-env-error", choices=("stop", "restart"), help="what to do when an environment fails")
    return parser


def _add_command(commands: Any, name: str, *, about: str) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=about, description=about.capitalize() + ".", allow_abbrev=False)
    parser.set_defaults(command=name)
    return parser


def _add_seed(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=_seed, default=0, help="random seed, a whole number (default: 0)")


def _add_cache(parser: argparse.ArgumentParser) -> None:
    about = "folder for compiled programs, or off (default: $WEFT_CACHE_DIR, or ~/.cache/weft)"
    parser.add_argument("--cache", metavar="DIR", help=about)


def _count(text: str) -> int:
    return _whole_number(text, minimum=1, maximum=2**63)


def _seed(text: str) -> int:
    return _whole_number(text, minimum=0, maximum=LARGEST_SEED)


def _whole_number(text: str, *, minimum: int, maximum: int) -> int:
    try:
        number = read_value(text, int)
    except ValueError:
        number = minimum - 1
    if not minimum <= number <= maximum:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {minimum} to {maximum}")
    return number
