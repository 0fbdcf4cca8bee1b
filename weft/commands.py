"""The commands of `weft`: each takes the parsed arguments and returns the exit code.

`weft.cli` imports this module, and with it JAX, only when a command runs.
"""

import argparse
import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any

from weft import envs
from weft.algorithm import Algorithm
from weft.algos import ALGOS, load_algorithm
from weft.envs.world import World
from weft.errors import WeftError
from weft.evaluation.play import describe_evaluation, evaluate
from weft.evaluation.saved import SavedRun
from weft.layout.catalogue import LAYOUTS, parse
from weft.project.printer import FORMATS, describe
from weft.replay.server.serve import serve
from weft.run import summarise, summary_record, train
from weft.runtime.check import check
from weft.runtime.driver import Plan
from weft.settings import configure, read_options

# `weft envs` lists a group of environments in full up to this size.
LARGEST_LISTED_GROUP = 35


def run_train(args: argparse.Namespace) -> int:
    names = ("layout", "engine", "steps", "seed", "out", "eval_every", "eval_episodes", "record", "cache")
    result = train(_algorithm(args), _world(args), **{name: getattr(args, name) for name in names})
    print(json.dumps(summary_record(result)) if args.json else summarise(result))
    return 0


def run_check(args: argparse.Namespace) -> int:
    names = ("layout", "against", "iterations", "seed", "cache")
    comparison = check(_algorithm(args), _world(args), **{name: getattr(args, name) for name in names})
    print(comparison.table())
    return 0 if comparison.equal else 1


def run_graph(args: argparse.Namespace) -> int:
    plan = Plan.of(_algorithm(args), _world(args), parse(args.layout))
    print(FORMATS[args.format](describe(plan.project())))
    return 0


def run_eval(args: argparse.Namespace) -> int:
    run = SavedRun.open(args.run)
    names = ("episodes", "seed", "video", "record", "cache")
    evaluation = evaluate(run, greedy=not args.sample, **{name: getattr(args, name) for name in names})
    print(json.dumps(vars(evaluation)) if args.json else describe_evaluation(evaluation))
    return 0


def list_algos(args: argparse.Namespace) -> int:
    return _print_list({name: _first_line(kind) for name, kind in ALGOS.items()})


def list_layouts(args: argparse.Namespace) -> int:
    def usage(name: str) -> str:
        options = inspect.signature(LAYOUTS[name]).parameters.values()
        return name + (":" if options else "") + ",".join(f"{option.name}={option.default}" for option in options)

    return _print_list({usage(name): _first_line(layout) for name, layout in LAYOUTS.items()})


def list_envs(args: argparse.Namespace) -> int:
    matching = {name: line for name, line in envs.available().items() if args.filter.lower() in name.lower()}
    if not matching:
        raise WeftError(f"no environment has {args.filter!r} in its name: `weft envs` lists them")
    return _print_list(matching if args.filter else _shorten_groups(matching))


COMMANDS: Mapping[str, Callable[[argparse.Namespace], int]] = {
    "train": run_train,
    "check": run_check,
    "graph": run_graph,
    "eval": run_eval,
    "replay serve": serve,
    "algos": list_algos,
    "layouts": list_layouts,
    "envs": list_envs,
}


def _world(args: argparse.Namespace) -> World:
    options = read_options(args.env_set)
    if args.on_env_error:
        options["on_error"] = args.on_env_error
    return World.of(args.env, options, args.wrap)


def _algorithm(args: argparse.Namespace) -> Algorithm:
    dataset = [] if args.dataset is None else [f"dataset={args.dataset}"]
    return configure(load_algorithm(args.algo), [*args.set, *dataset])


def _shorten_groups(lines: Mapping[str, str]) -> dict[str, str]:
    """Replaces each large group of environments by one line that says how to list it."""
    groups: dict[str, dict[str, str]] = {}
    for name, line in lines.items():
        groups.setdefault(name.rpartition("/")[0] or name.partition(":")[0] + ":", {})[name] = line
    shown: dict[str, str] = {}
    for start, group in groups.items():
        small = len(group) <= LARGEST_LISTED_GROUP
        shown |= group if small else {f"{start}...": f"{len(group):,} more: `weft envs {start}` lists them"}
    return shown


def _print_list(lines: Mapping[str, str]) -> int:
    width = max(map(len, lines), default=0)
    for name, line in lines.items():
        print(f"{name:<{width}}  {line}")
    return 0


def _first_line(documented: Any) -> str:
    return (inspect.getdoc(documented) or "").partition("\n")[0]
