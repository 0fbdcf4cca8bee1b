"""The command line: `weft train`, `check`, `graph`, `replay serve`, and lists of what there is.

Whatever a user can get wrong ends with one line on standard error and exit code 2, never with a traceback.
"""

import argparse
import inspect
import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from weft import envs
from weft.algorithm import Algorithm
from weft.algos import ALGOS, load_algorithm
from weft.envs.world import World
from weft.errors import WeftError
from weft.evaluation.play import describe_evaluation, evaluate
from weft.evaluation.saved import SavedRun
from weft.layout.catalogue import LAYOUTS, parse
from weft.project.printer import FORMATS, describe
from weft.replay.server.serve import add_replay
from weft.run import DEFAULT_STEPS, summarise, summary_record, train
from weft.runtime.check import check
from weft.runtime.driver import Plan
from weft.settings import configure, read_options, read_value
from weft.version import VERSION

INTERRUPTED = 130
LARGEST_SEED = 2**32 - 1
LISTED = 35


def console() -> NoReturn:
    """The `weft` command: `main`, and an end to the process that suits its outcome."""
    code = main()
    if code == INTERRUPTED:
        # XLA may still be at work in threads of its own, and crashes when the interpreter is torn down under it.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is 0, 1 (a check that found a difference), 2 (misuse) or 130 (interrupted)."""
    try:
        args = _parser().parse_args(argv)
        code = args.command(args)
        sys.stdout.flush()
        return code
    except WeftError as error:
        print(f"weft: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("weft: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader (`| head`) has seen enough; Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _train(args: argparse.Namespace) -> int:
    names = ("layout", "engine", "steps", "seed", "out", "eval_every", "eval_episodes", "record", "cache")
    result = train(_algorithm(args), _world(args), **{name: getattr(args, name) for name in names})
    print(json.dumps(summary_record(result)) if args.json else summarise(result))
    return 0


def _check(args: argparse.Namespace) -> int:
    names = ("layout", "against", "iterations", "seed", "cache")
    found = check(_algorithm(args), _world(args), **{name: getattr(args, name) for name in names})
    print(found.table())
    return 0 if found.identical else 1


def _graph(args: argparse.Namespace) -> int:
    plan = Plan.of(_algorithm(args), _world(args), parse(args.layout))
    print(FORMATS[args.format](describe(plan.project())))
    return 0


def _eval(args: argparse.Namespace) -> int:
    run = SavedRun.open(args.run)
    names = ("episodes", "seed", "video", "record", "cache")
    played = evaluate(run, greedy=not args.sample, **{name: getattr(args, name) for name in names})
    print(json.dumps(vars(played)) if args.json else describe_evaluation(played))
    return 0


def _algos(args: argparse.Namespace) -> int:
    return _list({name: _first_line(kind) for name, kind in ALGOS.items()})


def _layouts(args: argparse.Namespace) -> int:
    def usage(name: str) -> str:
        options = inspect.signature(LAYOUTS[name]).parameters.values()
        return name + (":" if options else "") + ",".join(f"{option.name}={option.default}" for option in options)

    return _list({usage(name): _first_line(layout) for name, layout in LAYOUTS.items()})


def _envs(args: argparse.Namespace) -> int:
    wanted = {name: line for name, line in envs.available().items() if args.filter.lower() in name.lower()}
    if not wanted:
        raise WeftError(f"no environment has {args.filter!r} in its name: `weft envs` lists them")
    return _list(wanted if args.filter else _shortened(wanted))


class _Parser(argparse.ArgumentParser):
    """Reports misuse like any other error of the user's, in one line."""

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
    add_replay(commands)
    _add_listing(commands, "algos", _algos)
    _add_listing(commands, "layouts", _layouts)
    listing = _add_listing(commands, "envs", _envs)
    listing.add_argument("filter", nargs="?", default="", metavar="TEXT", help="only those with this in their names")
    return parser


def _add_listing(commands: Any, name: str, command: Any) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=f"list the {name}, one line each")
    parser.set_defaults(command=command)
    return parser


def _add_train(commands: Any) -> None:
    parser = _add_program(commands, "train", _train, about="train an algorithm on an environment")
    parser.add_argument("--layout", default="fused", metavar="NAME[:k=v,...]", help="who runs what (default: fused)")
    parser.add_argument("--engine", default="local", help="what runs the roles (default: local)")
    parser.add_argument(
        "--steps", type=_count, default=DEFAULT_STEPS, help="environment steps in all (default: 500000)"
    )
    parser.add_argument("--seed", type=_seed, default=0, help="a whole number (default: 0)")
    parser.add_argument("--out", metavar="DIR", help="the run's folder (default: runs/<algo>-<env>-<time>)")
    parser.add_argument("--eval-every", type=_count, metavar="N", help="evaluate every N steps, beside the training")
    parser.add_argument("--eval-episodes", type=_count, default=10, help="episodes of an evaluation (default: 10)")
    parser.add_argument("--record", metavar="DIR", help="record every step as a dataset, to learn from offline")
    _add_cache(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line of standard output")


def _add_eval(commands: Any) -> None:
    about = "play with what a run learned"
    parser = commands.add_parser("eval", help=about, description=about.capitalize() + ".", allow_abbrev=False)
    parser.add_argument("run", metavar="RUN", help="a run's folder")
    parser.add_argument("--episodes", type=_count, default=10, help="how many to play (default: 10)")
    parser.add_argument("--sample", action="store_true", help="draw actions as in training, not the likeliest")
    parser.add_argument("--video", metavar="FILE", help="film the episodes, as .mp4 or .gif")
    parser.add_argument("--record", metavar="DIR", help="record the episodes as a dataset, to learn from offline")
    parser.add_argument("--seed", type=_seed, default=0, help="a whole number (default: 0)")
    _add_cache(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(command=_eval)


def _add_check(commands: Any) -> None:
    parser = _add_program(commands, "check", _check, about="compare a layout with the fused program, bit for bit")
    against = "another layout to compare with (default: fused; for one with lanes, its own roles in step)"
    parser.add_argument("--against", metavar="NAME[:k=v,...]", help=against)
    parser.add_argument("--layout", required=True, metavar="NAME[:k=v,...]", help="the layout to compare")
    parser.add_argument("--iterations", type=_count, default=10, help="how many to run (default: 10)")
    parser.add_argument("--seed", type=_seed, default=0, help="a whole number (default: 0)")
    _add_cache(parser)


def _add_graph(commands: Any) -> None:
    parser = _add_program(commands, "graph", _graph, about="print the roles, what each runs, and what crosses")
    parser.add_argument(
        "--layout", default="fused", metavar="NAME[:k=v,...]", help="the layout to draw (default: fused)"
    )
    parser.add_argument("--format", choices=tuple(FORMATS), default="text", help="(default: text)")


def _add_program(commands: Any, name: str, command: Any, *, about: str) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=about, description=about.capitalize() + ".", allow_abbrev=False)
    parser.add_argument("algo", metavar="ALGO", help="a name from `weft algos`, or your own as module:Class")
    parser.add_argument("env", metavar="ENV", help="a name from `weft envs`, or your own as module:attribute")
    parser.add_argument("--set", nargs="+", action="extend", default=[], metavar="field=value", help="settings of ALGO")
    parser.add_argument("--dataset", metavar="DIR", help="what an offline ALGO learns from: a folder, or minari:ID")
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
    parser.set_defaults(command=command)
    return parser


def _add_cache(parser: argparse.ArgumentParser) -> None:
    about = "the folder for compiled programs, or off (default: $WEFT_CACHE_DIR, or ~/.cache/weft)"
    parser.add_argument("--cache", metavar="DIR", help=about)


def _world(args: argparse.Namespace) -> World:
    options = read_options(args.env_set)
    if args.on_env_error:
        options["on_error"] = args.on_env_error
    return World.of(args.env, options, args.wrap)


def _algorithm(args: argparse.Namespace) -> Algorithm:
    given = [] if args.dataset is None else [f"dataset={args.dataset}"]
    return configure(load_algorithm(args.algo), [*args.set, *given])


def _count(text: str) -> int:
    return _whole(text, least=1, most=2**63)


def _seed(text: str) -> int:
    return _whole(text, least=0, most=LARGEST_SEED)


def _whole(text: str, *, least: int, most: int) -> int:
    try:
        number = read_value(text, int)
    except ValueError:
        number = least - 1
    if not least <= number <= most:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least} to {most}")
    return number


def _shortened(lines: Mapping[str, str]) -> dict[str, str]:
    """The lines, with as many as nobody would read replaced by one that says how to see them."""
    groups: dict[str, dict[str, str]] = {}
    for name, line in lines.items():
        groups.setdefault(name.rpartition("/")[0] or name.partition(":")[0] + ":", {})[name] = line
    shown: dict[str, str] = {}
    for start, group in groups.items():
        few = len(group) <= LISTED
        shown |= group if few else {f"{start}...": f"{len(group):,} more: `weft envs {start}` lists them"}
    return shown


def _list(lines: Mapping[str, str]) -> int:
    width = max(map(len, lines), default=0)
    for name, line in lines.items():
        print(f"{name:<{width}}  {line}")
    return 0


def _first_line(documented: Any) -> str:
    return (inspect.getdoc(documented) or "").partition("\n")[0]
