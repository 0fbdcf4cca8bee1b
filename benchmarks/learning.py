"""Trains algorithms to a target return: every row of `ROWS`, over several seeds. Writes the results as a table.

    python benchmarks/learning.py --jobs 2        # all rows, two seeds at a time: results/learning.{md,json}
    python benchmarks/learning.py --only Pendulum --seeds 0 1 --layout actors

Each seed runs in its own process. Rows that are not selected keep their recorded results. The return of a seed is the
training return: the mean over the most recent iterations that together finished at least 100 episodes, with
exploration. Rows with `evaluated` use 100 episodes of the final policy instead, without exploration. A row passes if
every seed reaches the target; a row with `should_fail` passes if no seed does.
"""

import argparse
import dataclasses
import json
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Dataset:
    """A dataset: episodes of a policy that `algo` trained for `steps` on `env`."""

    algo: str
    env: str
    steps: int
    settings: tuple[str, ...] = ()
    sampled: bool = False
    """Whether actions are sampled as in training, instead of the mode."""


@dataclass(frozen=True)
class Row:
    """A claim: on this environment, every seed of the algorithm reaches `target` within `steps`."""

    algo: str
    env: str
    steps: int
    target: float
    settings: tuple[str, ...] = ()
    layout: str = "fused"
    wrappers: tuple[str, ...] = ()
    should_fail: bool = False
    """Whether the claim is that no seed reaches the target."""
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    evaluated: bool = False
    """Whether the return is that of an evaluation after training, not the training return."""
    dataset: Dataset | None = None
    """The training data of an offline algorithm."""

    @property
    def name(self) -> str:
        return " ".join((self.algo, self.env, self.layout, *self.wrappers, *self.settings))

    def options(self, dataset_folder: str) -> list[str]:
        """Returns the options of `weft train` for this row."""
        options = ["--layout", self.layout, "--steps", str(self.steps)]
        options += ["--dataset", dataset_folder] if self.dataset else []
        options += ["--set", *self.settings] if self.settings else []
        options += ["--wrap", *self.wrappers] if self.wrappers else []
        return options + (["--eval-every", str(self.steps), "--eval-episodes", "100"] if self.evaluated else [])


PENDULUM = ("gamma=0.9", "lr=1e-3", "epochs=10", "entropy_weight=0")
LANDER = ("num_envs=16", "horizon=512", "epochs=10", "minibatches=32", "lr=5e-4", "anneal_steps=1000000")
LANDER += ("gamma=0.999", "lam=0.98")
CHEETAH = ("num_envs=8", "horizon=128", "epochs=10", "minibatches=16", "lr=5e-4", "anneal_steps=1000000")
CHEETAH += ("entropy_weight=0",)
NORMALISED_REWARD = ("normalise_reward=0.999",)
NORMALISED = ("normalise_obs", "normalise_reward")
RECURRENT = ("num_envs=8", "horizon=32", "epochs=20", "minibatches=1", "lr=1e-3", "gamma=0.98", "lam=0.8")
RECURRENT += ("entropy_weight=0", "anneal_steps=200000", "anneal_clip=true", "activation=relu", "hidden=64")
RECURRENT_WRAPPERS = ("normalise_obs", "normalise_reward=0.98")
MEMORY_CHAIN = ("horizon=64", "lr=1e-3")
ANNEALED = ("anneal_steps=990000",)
PARTIAL_CARTPOLE = "benchmarks.hidden:HiddenVelocities"
THREE_STEP = ("n_step=3", "batch_size=64")
RAINBOW = ("prioritised=true", "dueling=true", "distributional=true", "v_min=0", "v_max=100", *THREE_STEP)
APEX = ("horizon=4", "updates=32", "prioritised=true", "epsilon_spread=2", *THREE_STEP)
DISCRETE_SAC = ("updates=4", "batch_size=128", "hidden=128,128", "lr=1e-3", "actor_lr=1e-3")
HIGH_LR = ("lr=1e-3", "actor_lr=1e-3")
D4PG = ("num_atoms=101", "v_min=-1200", "v_max=0", "n_step=3", "exploration_noise=0.2")
CONTINUOUS_CQL = ("alpha=20", "action_samples=4", "batch_size=128", "hidden=128,128", "tau=0.01", *HIGH_LR)
CARTPOLE_DATASET = Dataset("ppo", "gymnax:CartPole-v1", 490_000)
PENDULUM_DATASET = Dataset("sac", "gymnax:Pendulum-v1", 20_000, HIGH_LR, sampled=True)
LONG_WARM_UP = ("warm_up_steps=10000", "capacity=300000")


def recurrent_row(memory: str, **options: Any) -> Row:
    """PPO on CartPole without velocities in the observations."""
    settings = (*RECURRENT, memory)
    return Row(
        "ppo", PARTIAL_CARTPOLE, steps=200_000, target=475, settings=settings, wrappers=RECURRENT_WRAPPERS, **options
    )


def asynchronous_rows(env: str) -> tuple[Row, ...]:
    """CartPole with asynchronous layouts."""
    layouts = {
        ("impala", 990_000): "impala:actors=2",
        ("appo", 490_000): "impala:actors=2",
        ("a2c", 990_000): "a3c:workers=2",
        ("ppo", 490_000): "seed:envs=2,take=1",
    }
    return tuple(
        Row(algo, env, steps=steps, target=475, layout=layout, seeds=(0, 1, 2))
        for (algo, steps), layout in layouts.items()
    )


def evaluated_row(algo: str, env: str, steps: int, target: float, *settings: str, **options: Any) -> Row:
    """An off-policy or offline algorithm, evaluated without exploration."""
    return Row(algo, env, steps, target, settings=settings, seeds=(0, 1, 2), evaluated=True, **options)


OFF_POLICY_ROWS = (
    evaluated_row("dqn", "gymnax:CartPole-v1", 200_000, 475),
    evaluated_row("dqn", "gymnax:CartPole-v1", 200_000, 475, *RAINBOW),
    evaluated_row("dqn", "gymnax:CartPole-v1", 200_000, 475, *APEX, layout="apex:actors=2"),
    evaluated_row("sac", "gymnax:Pendulum-v1", 20_000, -200, *HIGH_LR),
    evaluated_row("ddpg", "gymnax:Pendulum-v1", 30_000, -200, *HIGH_LR),
    evaluated_row("d4pg", "gymnax:Pendulum-v1", 30_000, -200, *HIGH_LR, *D4PG, "prioritised=true"),
    evaluated_row("discrete_sac", "gymnax:CartPole-v1", 100_000, 475, *DISCRETE_SAC),
    evaluated_row("sac", "gym:HalfCheetah-v5", 300_000, 4000, *LONG_WARM_UP),
    evaluated_row("td3", "gym:HalfCheetah-v5", 300_000, 4000, *LONG_WARM_UP),
    evaluated_row("r2d2", "gymnax:MemoryChain-bsuite", 100_000, 0.95, "memory=gru", "epsilon=0.01"),
    evaluated_row("bc", "gymnax:CartPole-v1", 500_000, 475, dataset=CARTPOLE_DATASET),
    evaluated_row("cql", "gymnax:CartPole-v1", 500_000, 475, dataset=CARTPOLE_DATASET),
    evaluated_row("bc", "gymnax:Pendulum-v1", 500_000, -200, dataset=PENDULUM_DATASET),
    evaluated_row("continuous_cql", "gymnax:Pendulum-v1", 1_000_000, -200, *CONTINUOUS_CQL, dataset=PENDULUM_DATASET),
)

ROWS = (
    Row("ppo", "gymnax:CartPole-v1", steps=490_000, target=475),
    Row("ppo", "gymnax:CartPole-v1", steps=490_000, target=475, layout="actors:actors=2"),
    Row("ppo", "gymnax:CartPole-v1", steps=490_000, target=475, layout="seed:envs=2"),
    Row("ppo", "gymnax:CartPole-v1", steps=490_000, target=475, layout="allreduce:workers=2"),
    Row("a2c", "gymnax:CartPole-v1", steps=990_000, target=475, settings=ANNEALED),
    Row("impala", "gymnax:CartPole-v1", steps=990_000, target=475, settings=ANNEALED),
    Row("appo", "gymnax:CartPole-v1", steps=490_000, target=475),
    Row("reinforce", "gymnax:CartPole-v1", steps=990_000, target=475, settings=ANNEALED),
    *asynchronous_rows("gymnax:CartPole-v1"),
    *asynchronous_rows("gym:CartPole-v1"),
    Row("ppo", "gymnax:Pendulum-v1", steps=990_000, target=-300, settings=PENDULUM),
    Row("ppo", "gym:CartPole-v1", steps=490_000, target=475),
    Row("ppo", "gym:CartPole-v1", steps=490_000, target=475, layout="actors:actors=2"),
    Row("ppo", "gym:LunarLander-v3", steps=1_000_000, target=200, settings=LANDER, wrappers=NORMALISED_REWARD),
    Row(
        "ppo",
        "gym:LunarLander-v3",
        steps=1_000_000,
        target=200,
        settings=LANDER,
        wrappers=NORMALISED_REWARD,
        layout="actors:actors=2",
    ),
    Row("ppo", "gym:HalfCheetah-v5", steps=1_000_000, target=1500, settings=CHEETAH, wrappers=NORMALISED),
    Row(
        "ppo",
        "gym:HalfCheetah-v5",
        steps=1_000_000,
        target=1500,
        settings=CHEETAH,
        wrappers=NORMALISED,
        layout="actors:actors=2",
    ),
    recurrent_row("memory=gru"),
    recurrent_row("memory=lstm"),
    recurrent_row("memory=none", should_fail=True, seeds=(0, 1, 2)),
    Row("ppo", "gymnax:MemoryChain-bsuite", steps=300_000, target=0.95, settings=(*MEMORY_CHAIN, "memory=gru")),
    Row(
        "ppo",
        "gymnax:MemoryChain-bsuite",
        steps=300_000,
        target=0.95,
        settings=MEMORY_CHAIN,
        should_fail=True,
        seeds=(0, 1, 2),
    ),
    *OFF_POLICY_ROWS,
)


def run_weft(*arguments: str) -> str:
    """Runs a command of weft and returns its standard output."""
    command = [sys.executable, "-m", "weft", *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE, check=True, cwd=Path(__file__).parents[1], text=True).stdout


def record_dataset(dataset: Dataset, folder: str) -> str:
    """Trains a policy and records its episodes. Returns the dataset's folder."""
    settings = ["--set", *dataset.settings] if dataset.settings else []
    run_weft("train", dataset.algo, dataset.env, "--steps", str(dataset.steps), *settings, "--out", f"{folder}/run")
    sample = ["--sample"] if dataset.sampled else []
    run_weft("eval", f"{folder}/run", "--episodes", "40", *sample, "--record", f"{folder}/episodes")
    return f"{folder}/episodes"


def train_seed(row: Row, seed: int, dataset_folder: str) -> dict[str, Any]:
    """Trains one seed in its own process. Returns the summary that weft prints, with the seed's `return`."""
    with tempfile.TemporaryDirectory() as folder:
        run = ["--seed", str(seed), "--out", f"{folder}/run", "--json"]
        output = run_weft("train", row.algo, row.env, *row.options(dataset_folder), *run)
    summary = json.loads(output.splitlines()[-1])
    summary["return"] = summary["evaluation" if row.evaluated else "return_mean"]
    print(row.name, f"seed {seed}:", summary["return"], flush=True)
    return summary


def train_rows(rows: list[Row], jobs: int) -> list[dict[str, Any]]:
    """Trains every seed of the rows. Returns one record per row."""
    with ThreadPoolExecutor(jobs) as pool, tempfile.TemporaryDirectory() as folder:
        datasets = dict.fromkeys(row.dataset for row in rows if row.dataset)
        folders = {dataset: record_dataset(dataset, f"{folder}/{number}") for number, dataset in enumerate(datasets)}
        futures = [
            [pool.submit(train_seed, row, seed, folders[row.dataset] if row.dataset else "") for seed in row.seeds]
            for row in rows
        ]
        summaries = [[future.result() for future in row_futures] for row_futures in futures]
    return [make_record(row, row_summaries) for row, row_summaries in zip(rows, summaries, strict=True)]


def make_record(row: Row, summaries: list[dict[str, Any]]) -> dict[str, Any]:
    returns = [summary["return"] for summary in summaries]
    reached = [value is not None and value >= row.target for value in returns]
    return {
        "name": row.name,
        **dataclasses.asdict(row),
        "steps_done": summaries[0]["steps"],
        "returns": returns,
        "wall_s": [summary["wall_s"] for summary in summaries],
        "passed": not any(reached) if row.should_fail else all(reached),
    }


def table(records: list[dict[str, Any]]) -> str:
    """Formats the records as Markdown."""
    lines = [
        "<!-- Written by benchmarks/learning.py. -->",
        "A return is the mean over at least the last 100 episodes of training. In rows marked (evaluated), it is the",
        "mean over 100 episodes of the final policy, without exploration.",
        "",
        "| algorithm | environment | layout | settings | steps | target | return by seed | passed |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for record in records:
        returns = ", ".join("-" if value is None else f"{value:.1f}" for value in record["returns"])
        settings = " ".join((*record["wrappers"], *record["settings"])) or "defaults"
        target = f"{'below ' if record['should_fail'] else ''}{record['target']:g}"
        returns += " (evaluated)" if record["evaluated"] else ""
        passed = "yes" if record["passed"] else "no"
        cells = (record["algo"], record["env"], record["layout"], settings, f"{record['steps_done']:,}")
        lines.append("| " + " | ".join((*cells, target, returns, passed)) + " |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[""], metavar="TEXT", help="rows whose name contains a TEXT")
    parser.add_argument("--seeds", type=int, nargs="+", help="seeds (default: those of each row)")
    parser.add_argument("--layout", help="layout (default: that of each row)")
    parser.add_argument("--jobs", type=int, default=1, help="seeds to train at a time (default: 1)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for learning.md and learning.json")
    args = parser.parse_args()
    changes = {name: value for name, value in (("seeds", args.seeds), ("layout", args.layout)) if value is not None}
    rows = [dataclasses.replace(row, **changes) for row in ROWS if any(text in row.name for text in args.only)]
    args.out.mkdir(parents=True, exist_ok=True)
    results = args.out / "learning.json"
    by_name = {record["name"]: record for record in (json.loads(results.read_text()) if results.exists() else [])}
    by_name |= {record["name"]: record for record in train_rows(rows, args.jobs)}
    order = [row.name for row in ROWS]
    records = [by_name[name] for name in (*order, *(set(by_name) - set(order))) if name in by_name]
    results.write_text(json.dumps(records, indent=2) + "\n")
    (args.out / "learning.md").write_text(table(records))
    return 0 if all(record["passed"] for record in records) else 1


if __name__ == "__main__":
    raise SystemExit(main())
