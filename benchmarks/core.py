"""Compares the speed of weft's layouts with the same training loop written by hand in JAX.

    python benchmarks/core.py                       # benchmarks/results/core-<platform>-<envs>.{md,json}
    python benchmarks/core.py --envs 2048 --rounds 9

Each round measures every contender in turn, over the same number of iterations. Ratios are computed within a round. The
report has their median over the rounds, with the minimum and the maximum. Compilation is not counted.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
from jax import lax
from plain_ppo import make_ppo
from summaries import ratio, spread, summary

from weft import envs
from weft.algos.ppo import PPO
from weft.layout.catalogue import parse
from weft.project.project import project
from weft.runtime.local import LocalEngine
from weft.runtime.meter import Meter

RESULTS = Path(__file__).parent / "results"
ENV = "gymnax:CartPole-v1"
Contender = Callable[[], None]
"""Trains for one round, and returns when the result is computed."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envs", type=int, default=64, help="environments (default: 64)")
    parser.add_argument("--horizon", type=int, default=128, help="steps per rollout (default: 128)")
    parser.add_argument(
        "--dispatch", type=int, default=4, help="iterations per dispatch, by hand and fused (default: 4)"
    )
    parser.add_argument("--iterations", type=int, default=16, help="iterations per round (default: 16)")
    parser.add_argument("--rounds", type=int, default=9, help="(default: 9)")
    args = parser.parse_args()
    size = {"num_envs": args.envs, "horizon": args.horizon}
    contenders = {
        "by hand": by_hand(size, args.dispatch, args.iterations),
        "fused": by_layout("fused", size, args.dispatch, args.iterations),
        "actors": by_layout("actors", size, 1, args.iterations),
        "seed": by_layout("seed", size, 1, args.iterations),
    }
    seconds = measure(contenders, args.rounds)
    record = {
        "platform": jax.devices()[0].device_kind,
        "jax": jax.__version__,
        "settings": vars(args),
        "ms_per_iteration": {
            name: summary([1e3 * round_seconds / args.iterations for round_seconds in rounds])
            for name, rounds in seconds.items()
        },
        "ratios": {
            "fused / by hand": ratio(seconds["fused"], seconds["by hand"]),
            "actors / fused": ratio(seconds["actors"], seconds["fused"]),
            "seed / fused": ratio(seconds["seed"], seconds["fused"]),
        },
        "seed_us_per_step": seed_overhead(seconds, args),
        "time": {layout: time_by_role(layout, size, args.iterations) for layout in ("actors", "seed")},
    }
    write_results(record)


def by_hand(size: dict[str, int], dispatch: int, iterations: int) -> Contender:
    """The hand-written loop: one jitted function that donates the state. Metrics are fetched after every dispatch."""
    init, step = make_ppo(**size)
    chunk = jax.jit(lambda s: lax.scan(lambda carry, _: step(carry), s, length=dispatch), donate_argnums=0)
    state = jax.jit(init)(jax.random.key(0))

    def train() -> None:
        nonlocal state
        for _ in range(iterations // dispatch):
            state, metrics = chunk(state)
            jax.device_get(metrics)
        jax.block_until_ready(state)

    return train


def by_layout(layout: str, size: dict[str, int], dispatch: int, iterations: int) -> Contender:
    """weft's engine, called as `weft train` calls it."""
    engine, state = prepare(layout, size, dispatch)

    def train() -> None:
        nonlocal state
        state = jax.block_until_ready(engine.run(state, iterations // dispatch))

    return train


def prepare(layout: str, size: dict[str, int], dispatch: int) -> tuple[LocalEngine, Any]:
    """Compiles PPO for a layout. Returns the engine and the initial state."""
    algo = PPO(**size)
    engine = LocalEngine(project(algo, partial(envs.make, ENV), parse(layout), dispatch))
    init = jax.jit(partial(algo.init, envs.make(ENV, algo.num_envs)))
    return engine, init(jax.random.key(0))


def measure(contenders: dict[str, Contender], rounds: int) -> dict[str, list[float]]:
    """Returns the seconds of every contender in every round. One warm-up round is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for round_ in range(rounds + 1):
        for name, train in contenders.items():
            started = time.perf_counter()
            train()
            if round_:
                seconds[name].append(time.perf_counter() - started)
    return seconds


def time_by_role(layout: str, size: dict[str, int], iterations: int) -> dict[str, float]:
    """Returns each role's microseconds of computing, waiting and sending, per environment step."""
    engine, state = prepare(layout, size, 1)
    engine.run(state, 1)
    meter = Meter()
    started = time.perf_counter()
    engine.run(state, iterations, meter=meter)
    total = 1e6 * (time.perf_counter() - started) / (iterations * size["horizon"])
    times: dict[str, float] = {}
    for role in meter.read()[1].roles:
        fractions = {"computing": role.computing, "waiting": role.waiting, "sending": role.sending}
        times |= {f"{role.role} {activity}": total * fraction for activity, fraction in fractions.items()}
    return {"total": total} | dict(sorted(times.items()))


def seed_overhead(seconds: dict[str, list[float]], args: argparse.Namespace) -> dict[str, float]:
    """Returns the microseconds that `seed` takes more than `fused`, per environment step."""
    steps = args.iterations * args.horizon
    extra = [1e6 * (seed - fused) / steps for seed, fused in zip(seconds["seed"], seconds["fused"], strict=True)]
    return summary(extra)


def write_results(record: dict[str, Any]) -> None:
    RESULTS.mkdir(exist_ok=True)
    stem = f"core-{jax.default_backend()}-{record['settings']['envs']}"
    (RESULTS / f"{stem}.json").write_text(json.dumps(record, indent=2) + "\n")
    text = "\n".join(table(record)) + "\n"
    (RESULTS / f"{stem}.md").write_text(text)
    sys.stdout.write(text)


def table(record: dict[str, Any]) -> list[str]:
    settings = record["settings"]
    shape = f"{settings['envs']} environments x {settings['horizon']} steps"
    lines = [
        "<!-- Written by benchmarks/core.py. -->",
        f"PPO on CartPole, {shape}, {record['platform']}, jax {record['jax']}:",
        f"median of {settings['rounds']} rounds of {settings['iterations']} iterations each (minimum to maximum).",
        "",
        "| quantity | measured |",
        "|---|---|",
    ]
    for name, values in record["ms_per_iteration"].items():
        lines.append(f"| {name}, ms per iteration | {spread(values)} |")
    for name, values in record["ratios"].items():
        lines.append(f"| {name} | {spread(values)} |")
    lines.append(f"| seed minus fused, microseconds per step | {spread(record['seed_us_per_step'])} |")
    for layout, times in record["time"].items():
        for name, value in times.items():
            lines.append(f"| {layout}: {name}, microseconds per step | {value:.1f} |")
    return lines


if __name__ == "__main__":
    main()
