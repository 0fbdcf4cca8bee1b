"""Trains RLlib's IMPALA on CartPole and prints its throughput as one line of JSON.

`benchmarks/async.py` passes the same environment, network and hyperparameters to weft.
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
    parser.add_argument("--runners", type=int, default=2, help="env runners, which divide the environments among them")
    parser.add_argument("--learners", type=int, default=1, help="learner processes; with 0 the driver learns")
    parser.add_argument("--uncounted", type=float, default=4.0, help="seconds before the clock starts")
    parser.add_argument("--seconds", type=float, default=8.0, help="measured seconds")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    # Declare one CPU per process even if the machine has fewer: otherwise Ray waits silently for CPUs to become free.
    cpus = 1 + args.runners + args.learners
    ray.init(num_cpus=cpus, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    algo = config(args).build_algo()
    first = train(algo, args.uncounted)
    started = time.perf_counter()
    last = train(algo, args.seconds)
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


def train(algo: Any, seconds: float) -> dict[str, Any]:
    """Trains for at least `seconds`, and until the learner has trained on a batch; returns the last result."""
    started, result = time.perf_counter(), algo.train()
    while time.perf_counter() - started < seconds or learned(result) == 0:
        result = algo.train()
    return result


def sampled(result: dict[str, Any]) -> int:
    return int(result["num_env_steps_sampled_lifetime"])


def learned(result: dict[str, Any]) -> int:
    metrics = result.get("learners", {}).get("__all_modules__", {})
    return int(metrics.get("num_env_steps_trained_lifetime", 0))


def config(args: argparse.Namespace) -> IMPALAConfig:
    """Translates the settings to RLlib's configuration, for its new API stack."""
    settings = args.settings
    envs_per_runner = settings["envs"] // args.runners
    return (
        IMPALAConfig()
        .environment(settings["env"])
        .env_runners(
            num_env_runners=args.runners,
            num_envs_per_env_runner=envs_per_runner,
            rollout_fragment_length=settings["horizon"],
        )
        .learners(num_learners=args.learners)
        .rl_module(
            model_config=DefaultModelConfig(
                fcnet_hiddens=settings["hidden"], fcnet_activation="tanh", vf_share_layers=False
            )
        )
        .training(
            train_batch_size_per_learner=envs_per_runner * settings["horizon"],
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
