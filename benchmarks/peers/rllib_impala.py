"""RLlib's IMPALA on CartPole: prints how fast it trained, as one line of JSON.

It is told everything but how to run: `benchmarks/async.py` gives the same numbers to weft.
"""

import argparse
import importlib.metadata
import json
import logging
import time
from typing import Any

import ray
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--settings", type=json.loads, required=True, help="env, envs, horizon, hidden, lr, ... as JSON"
    )
    parser.add_argument("--runners", type=int, default=2, help="env runners that share the environments")
    parser.add_argument("--learners", type=int, default=1, help="learner processes; 0: the driver learns")
    parser.add_argument("--uncounted", type=float, default=4.0, help="seconds before the clock starts")
    parser.add_argument("--seconds", type=float, default=8.0, help="that are counted")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    # One CPU for each process there is, whether the machine has it or not: it waits for them without a word.
    cpus = 1 + args.runners + args.learners
    ray.init(num_cpus=cpus, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    algo = config(args).build_algo()
    first = go(algo, args.uncounted)
    started = time.perf_counter()
    last = go(algo, args.seconds)
    seconds = time.perf_counter() - started
    steps = sampled(last) - sampled(first)
    record = {
        "steps_per_s": steps / seconds,
        "learned_per_s": (learned(last) - learned(first)) / seconds,
        "steps": steps,
        "seconds": seconds,
        "return_mean": float(last["env_runners"]["episode_return_mean"]),
        "versions": {name: importlib.metadata.version(name) for name in ("ray", "torch", "gymnasium")},
    }
    print(json.dumps(record))
    algo.stop()
    ray.shutdown()


def go(algo: Any, seconds: float) -> dict[str, Any]:
    """The last result after training for so long, and until it has learned from something."""
    started, result = time.perf_counter(), algo.train()
    while time.perf_counter() - started < seconds or learned(result) == 0:
        result = algo.train()
    return result


def sampled(result: dict[str, Any]) -> int:
    return int(result["num_env_steps_sampled_lifetime"])


def learned(result: dict[str, Any]) -> int:
    everything = result.get("learners", {}).get("__all_modules__", {})
    return int(everything.get("num_env_steps_trained_lifetime", 0))


def config(args: argparse.Namespace) -> IMPALAConfig:
    """The settings in RLlib's words, on its new API stack."""
    settings = args.settings
    each = settings["envs"] // args.runners
    return (
        IMPALAConfig()
        .environment(settings["env"])
        .env_runners(
            num_env_runners=args.runners,
            num_envs_per_env_runner=each,
            rollout_fragment_length=settings["horizon"],
        )
        .learners(num_learners=args.learners)
        .rl_module(
            model_config=DefaultModelConfig(
                fcnet_hiddens=settings["hidden"], fcnet_activation="tanh", vf_share_layers=False
            )
        )
        .training(
            train_batch_size_per_learner=each * settings["horizon"],
            lr=settings["lr"],
            gamma=settings["gamma"],
            entropy_coeff=settings["entropy_weight"],
            vf_loss_coeff=settings["value_weight"],
            grad_clip=settings["max_grad_norm"],
        )
        .reporting(min_time_s_per_iteration=1)
        .debugging(seed=args.seed, log_level="ERROR")
    )


if __name__ == "__main__":
    main()
