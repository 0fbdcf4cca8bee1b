"""Trains RLlib's PPO with the shared settings and prints its throughput as one line of JSON."""

import argparse
import importlib.metadata
import json
import logging
import time
from pathlib import Path

import ray
import torch
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

SETTINGS = json.loads((Path(__file__).parent / "settings.json").read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=48)
    parser.add_argument("--uncounted", type=int, default=2, help="iterations before the clock starts")
    parser.add_argument(
        "--runners",
        type=int,
        default=2,
        help="env runners, which divide the environments; with 0 the driver steps them",
    )
    parser.add_argument("--learners", type=int, default=0, help="learner processes; with 0 the driver learns")
    parser.add_argument("--threads", type=int, help="torch threads in the driver (default: torch's choice)")
    parser.add_argument("--vector", choices=("sync", "async"), default="sync")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    # Declare enough CPUs for every configuration: otherwise Ray waits forever for CPUs that the machine does not have.
    ray.init(num_cpus=8, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    algo = config(args).build_algo()
    for _ in range(args.uncounted):
        result = algo.train()
    before, started = result["num_env_steps_sampled_lifetime"], time.perf_counter()
    for _ in range(args.iterations):
        result = algo.train()
    seconds = time.perf_counter() - started
    steps = int(result["num_env_steps_sampled_lifetime"] - before)
    record = {
        "steps_per_s": steps / seconds,
        "steps": steps,
        "seconds": seconds,
        "return_mean": float(result["env_runners"]["episode_return_mean"]),
        "versions": {name: importlib.metadata.version(name) for name in ("ray", "torch", "gymnasium")},
    }
    print(json.dumps(record))
    algo.stop()
    ray.shutdown()


def config(args: argparse.Namespace) -> PPOConfig:
    """Translates the settings to RLlib's configuration, for its new API stack."""
    size = SETTINGS["envs"] * SETTINGS["horizon"]
    return (
        PPOConfig()
        .environment(SETTINGS["env"])
        .env_runners(
            num_env_runners=args.runners,
            num_envs_per_env_runner=SETTINGS["envs"] // max(args.runners, 1),
            rollout_fragment_length=SETTINGS["horizon"],
            gym_env_vectorize_mode=args.vector,
        )
        .learners(num_learners=args.learners)
        .rl_module(
            model_config=DefaultModelConfig(
                fcnet_hiddens=SETTINGS["hidden"], fcnet_activation="tanh", vf_share_layers=False
            )
        )
        .training(
            train_batch_size_per_learner=size,
            minibatch_size=size // SETTINGS["minibatches"],
            num_epochs=SETTINGS["epochs"],
            lr=SETTINGS["lr"],
            gamma=SETTINGS["gamma"],
            lambda_=SETTINGS["lam"],
            clip_param=SETTINGS["clip"],
            entropy_coeff=SETTINGS["entropy_weight"],
            vf_loss_coeff=SETTINGS["value_weight"],
            vf_clip_param=float("inf"),
            grad_clip=SETTINGS["max_grad_norm"],
            use_kl_loss=False,
        )
        .debugging(seed=args.seed, log_level="ERROR")
    )


if __name__ == "__main__":
    main()
