"""Trains Stable-Baselines3's PPO with the shared settings and prints its throughput as one line of JSON."""

import argparse
import importlib.metadata
import json
import time
from pathlib import Path

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

SETTINGS = json.loads((Path(__file__).parent / "settings.json").read_text())
VECTORS = {"dummy": DummyVecEnv, "subproc": SubprocVecEnv}


class Clock(BaseCallback):
    """Records when each iteration began and when the last one ended."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[float] = []

    def _on_rollout_start(self) -> None:
        self.times.append(time.perf_counter())

    def _on_step(self) -> bool:
        return True

    def _on_training_end(self) -> None:
        self.times.append(time.perf_counter())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=48)
    parser.add_argument("--uncounted", type=int, default=2, help="iterations before the clock starts")
    parser.add_argument("--vector", choices=VECTORS, default="dummy")
    parser.add_argument("--threads", type=int, help="torch threads (default: torch's choice)")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    size = SETTINGS["envs"] * SETTINGS["horizon"]
    model = PPO(
        "MlpPolicy",
        make_vec_env(SETTINGS["env"], SETTINGS["envs"], seed=args.seed, vec_env_cls=VECTORS[args.vector]),
        n_steps=SETTINGS["horizon"],
        batch_size=size // SETTINGS["minibatches"],
        n_epochs=SETTINGS["epochs"],
        learning_rate=SETTINGS["lr"],
        gamma=SETTINGS["gamma"],
        gae_lambda=SETTINGS["lam"],
        clip_range=SETTINGS["clip"],
        ent_coef=SETTINGS["entropy_weight"],
        vf_coef=SETTINGS["value_weight"],
        max_grad_norm=SETTINGS["max_grad_norm"],
        policy_kwargs={
            "net_arch": {"pi": SETTINGS["hidden"], "vf": SETTINGS["hidden"]},
            "activation_fn": torch.nn.Tanh,
        },
        seed=args.seed,
        device="cpu",
    )
    clock = Clock()
    model.learn((args.uncounted + args.iterations) * size, callback=clock)
    seconds = clock.times[-1] - clock.times[args.uncounted]
    episodes = [episode["r"] for episode in model.ep_info_buffer or ()]
    record = {
        "steps_per_s": args.iterations * size / seconds,
        "steps": args.iterations * size,
        "seconds": seconds,
        "return_mean": sum(episodes) / len(episodes),
        "versions": {name: importlib.metadata.version(name) for name in ("stable-baselines3", "torch", "gymnasium")},
    }
    print(json.dumps(record))
    model.get_env().close()


if __name__ == "__main__":
    main()
