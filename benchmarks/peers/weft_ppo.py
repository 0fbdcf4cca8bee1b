"""Trains weft's PPO with the shared settings and prints its throughput as one line of JSON."""

import argparse
import importlib.metadata
import json
import time
from pathlib import Path
from typing import Any

from weft.algos.ppo import PPO
from weft.envs.world import World
from weft.evaluation.observer import EvaluationObserver
from weft.report.update import Update
from weft.runtime.driver import train_in_memory

SETTINGS = json.loads((Path(__file__).parent / "settings.json").read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=48)
    parser.add_argument("--uncounted", type=int, default=2, help="iterations before the clock starts")
    parser.add_argument("--layout", default="fused")
    parser.add_argument("--eval-every", type=int, help="steps between evaluations (default: no evaluations)")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    algo = PPO(
        num_envs=SETTINGS["envs"],
        horizon=SETTINGS["horizon"],
        epochs=SETTINGS["epochs"],
        minibatches=SETTINGS["minibatches"],
        hidden=tuple(SETTINGS["hidden"]),
        lr=SETTINGS["lr"],
        gamma=SETTINGS["gamma"],
        lam=SETTINGS["lam"],
        clip=SETTINGS["clip"],
        entropy_weight=SETTINGS["entropy_weight"],
        value_weight=SETTINGS["value_weight"],
        max_grad_norm=SETTINGS["max_grad_norm"],
    )
    size = SETTINGS["envs"] * SETTINGS["horizon"]
    times: dict[int, float] = {}

    def clock(update: Update) -> None:
        # Evaluations that finish after an iteration send updates too; the iteration's time must not be overwritten.
        times.setdefault(update.steps, time.perf_counter())

    world = World.of(f"gym:{SETTINGS['env']}")
    settings: dict[str, Any] = {
        "layout": args.layout,
        "steps": (args.uncounted + args.iterations) * size,
        "seed": args.seed,
    }
    if args.eval_every is None:
        result = train_in_memory(algo, world, **settings, observers=[clock])
    else:
        with EvaluationObserver(algo, world, [clock], every=args.eval_every, episodes=10) as evaluations:
            observers: dict[str, Any] = {"observers": [evaluations], "state_observers": [evaluations]}
            result = train_in_memory(algo, world, **settings, **observers)
            evaluations.finish()
    first = min(steps for steps in times if steps >= args.uncounted * size)
    steps, seconds = result.steps - first, times[result.steps] - times[first]
    record = {
        "steps_per_s": steps / seconds,
        "steps": steps,
        "seconds": seconds,
        "return_mean": result.return_mean,
        "versions": {name: importlib.metadata.version(name) for name in ("weft", "jax", "gymnasium")},
    }
    print(json.dumps(record))


if __name__ == "__main__":
    main()
