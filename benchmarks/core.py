"""What the projection costs: layouts beside the same loop written by hand, all in one run.

    python benchmarks/core.py                       # benchmarks/results/core-<platform>-<envs>.{md,json}
    python benchmarks/core.py --envs 2048 --rounds 9

Every contender does the same iterations in every round, in turn; a ratio is taken within a round, and its median over
the rounds is reported with the smallest and the largest. Compilation is not counted.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
from jax import lax
from plain_ppo import make_ppo

from weft import envs
from weft.algos.ppo import PPO
from weft.layout.catalogue import parse
from weft.project.project import project
from weft.runtime.local import LocalEngine
from weft.runtime.meter import Meter

RESULTS = Path(__file__).parent / "results"
ENV = "gymnax:CartPole-v1"
Contender = Callable[[], None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envs", type=int, default=64)
    parser.add_argument("--horizon", type=int, default=128)
    parser.add_argument("--dispatch", type=int, default=4, help="iterations in one dispatch of the fused contenders")
    parser.add_argument("--iterations", type=int, default=16, help="iterations in one round")
    parser.add_argument("--rounds", type=int, default=9)
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
            name: summary([1e3 * s / args.iterations for s in each]) for name, each in seconds.items()
        },
        "ratios": {
            "fused / by hand": ratio(seconds, "fused", "by hand"),
            "actors / fused": ratio(seconds, "actors", "fused"),
            "seed / fused": ratio(seconds, "seed", "fused"),
        },
        "seed_us_per_step": per_step(seconds, args),
        "time": {layout: where_time_goes(layout, size, args.iterations) for layout in ("actors", "seed")},
    }
    write(record)


def by_hand(size: dict[str, int], dispatch: int, iterations: int) -> Contender:
    """The hand-written loop: one jitted function, the state donated, the metrics fetched after every dispatch."""
    init, step = make_ppo(**size)
    chunk = jax.jit(lambda s: lax.scan(lambda carry, _: step(carry), s, length=dispatch), donate_argnums=0)
    holder = [jax.jit(init)(jax.random.key(0))]

    def go() -> None:
        for _ in range(iterations // dispatch):
            holder[0], metrics = chunk(holder[0])
            jax.device_get(metrics)
        jax.block_until_ready(holder[0])

    return go


def by_layout(layout: str, size: dict[str, int], dispatch: int, iterations: int) -> Contender:
    """weft's engine as `weft train` uses it."""
    engine, holder = prepare(layout, size, dispatch)

    def go() -> None:
        holder[0] = jax.block_until_ready(engine.run(holder[0], iterations // dispatch))

    return go


def prepare(layout: str, size: dict[str, int], dispatch: int) -> tuple[LocalEngine, list[Any]]:
    algo = PPO(**size)
    engine = LocalEngine(project(algo, partial(envs.make, ENV), parse(layout), dispatch))
    init = jax.jit(partial(algo.init, envs.make(ENV, algo.num_envs)))
    return engine, [init(jax.random.key(0))]


def measure(contenders: dict[str, Contender], rounds: int) -> dict[str, list[float]]:
    """Seconds of every contender in every round, after one round that does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for round_ in range(rounds + 1):
        for name, go in contenders.items():
            started = time.perf_counter()
            go()
            if round_:
                seconds[name].append(time.perf_counter() - started)
    return seconds


def where_time_goes(layout: str, size: dict[str, int], iterations: int) -> dict[str, float]:
    """Microseconds per step of the environments that each role spends running, waiting and sending."""
    engine, holder = prepare(layout, size, 1)
    engine.run(holder[0], 1)
    meter = Meter()
    started = time.perf_counter()
    engine.run(holder[0], iterations, meter=meter)
    total = 1e6 * (time.perf_counter() - started) / (iterations * size["horizon"])
    spent: dict[str, float] = {}
    for share in meter.read()[1].roles:
        shares = {"runs": share.computing, "waits": share.waiting, "sends": share.sending}
        spent |= {f"{share.role} {what}": total * part for what, part in shares.items()}
    return {"total": total} | dict(sorted(spent.items()))


def per_step(seconds: dict[str, list[float]], args: argparse.Namespace) -> dict[str, float]:
    """What `seed` takes more than `fused`, for every step that it exchanges."""
    steps = args.iterations * args.horizon
    extra = [1e6 * (seed - fused) / steps for seed, fused in zip(seconds["seed"], seconds["fused"], strict=True)]
    return summary(extra)


def ratio(seconds: dict[str, list[float]], one: str, other: str) -> dict[str, float]:
    return summary([a / b for a, b in zip(seconds[one], seconds[other], strict=True)])


def summary(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


def write(record: dict[str, Any]) -> None:
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
        f"median of {settings['rounds']} rounds of {settings['iterations']} iterations each (least to most).",
        "",
        "| what | measured |",
        "|---|---|",
    ]
    for name, found in record["ms_per_iteration"].items():
        lines.append(f"| {name}, ms per iteration | {spread(found)} |")
    for name, found in record["ratios"].items():
        lines.append(f"| {name} | {spread(found)} |")
    lines.append(f"| seed beyond fused, microseconds per step exchanged | {spread(record['seed_us_per_step'])} |")
    for layout, parts in record["time"].items():
        for name, value in parts.items():
            lines.append(f"| {layout}: {name}, microseconds per step | {value:.1f} |")
    return lines


def spread(found: dict[str, float]) -> str:
    return f"{found['median']:.3g} ({found['least']:.3g} to {found['most']:.3g})"


if __name__ == "__main__":
    main()
