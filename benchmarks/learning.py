"""How well the algorithms learn: train every row over its seeds, and write what came of it as a table.

    python benchmarks/learning.py --jobs 2        # every row, two seeds at a time: results/learning.{md,json}
    python benchmarks/learning.py --only Pendulum --seeds 0 1 --layout actors

Every seed is a process of its own, and rows that are not run keep what the results say of them. A return is the mean
over the most recent iterations that together finished at least 100 episodes, while the policy still explores; or, where
a row says so, that of 100 episodes played with the end result, without exploring. A row passes if every seed reaches
its target; or none does, where that is the claim.
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
class Recorded:
    """A dataset: episodes that were played with what an algorithm had learned by then."""

    algo: str
    env: str
    steps: int
    settings: tuple[str, ...] = ()
    sampled: bool = False
    """Whether actions were drawn as in training, not the likeliest."""


@dataclass(frozen=True)
class Row:
    """One claim: this algorithm reaches this return on this environment within so many steps, on every seed."""

    algo: str
    env: str
    steps: int
    target: float
    settings: tuple[str, ...] = ()
    layout: str = "fused"
    wrappers: tuple[str, ...] = ()
    fails: bool = False
    """Whether the claim is that no seed reaches the target."""
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    played: bool = False
    """Whether it is judged by what is played at the end: for those who must explore to learn."""
    recorded: Recorded | None = None
    """What it learns from, if that is a dataset."""

    @property
    def name(self) -> str:
        return " ".join((self.algo, self.env, self.layout, *self.wrappers, *self.settings))

    def options(self, dataset: str) -> list[str]:
        """What the command line is told of the row."""
        given = ["--layout", self.layout, "--steps", str(self.steps)]
        given += ["--dataset", dataset] if self.recorded else []
        given += ["--set", *self.settings] if self.settings else []
        given += ["--wrap", *self.wrappers] if self.wrappers else []
        return given + (["--eval-every", str(self.steps), "--eval-episodes", "100"] if self.played else [])


PENDULUM = ("gamma=0.9", "lr=1e-3", "epochs=10", "entropy_weight=0")
LANDER = ("num_envs=16", "horizon=512", "epochs=10", "minibatches=32", "lr=5e-4", "anneal_steps=1000000")
LANDER += ("gamma=0.999", "lam=0.98")
CHEETAH = ("num_envs=8", "horizon=128", "epochs=10", "minibatches=16", "lr=5e-4", "anneal_steps=1000000")
CHEETAH += ("entropy_weight=0",)
SCALED = ("normalise_reward=0.999",)
NORMALISED = ("normalise_obs", "normalise_reward")
MEMORY = ("num_envs=8", "horizon=32", "epochs=20", "minibatches=1", "lr=1e-3", "gamma=0.98", "lam=0.8")
MEMORY += ("entropy_weight=0", "anneal_steps=200000", "anneal_clip=true", "activation=relu", "hidden=64")
MEMORY_NORMALISED = ("normalise_obs", "normalise_reward=0.98")
CHAIN = ("horizon=64", "lr=1e-3")
ANNEALED = ("anneal_steps=990000",)
HIDDEN = "benchmarks.hidden:HiddenVelocities"
SHORT = ("n_step=3", "batch_size=64")
RAINBOW = ("prioritised=true", "dueling=true", "distributional=true", "v_min=0", "v_max=100", *SHORT)
APEX = ("horizon=4", "updates=32", "prioritised=true", "epsilon_spread=2", *SHORT)
CHOICES = ("updates=4", "batch_size=128", "hidden=128,128", "lr=1e-3", "actor_lr=1e-3")
FAST = ("lr=1e-3", "actor_lr=1e-3")
RETURNS = ("num_atoms=101", "v_min=-1200", "v_max=0", "n_step=3", "exploration=0.2")
PRESSED = ("alpha=20", "draws=4", "batch_size=128", "hidden=128,128", "target_mix=0.01", *FAST)
BALANCED = Recorded("ppo", "gymnax:CartPole-v1", 490_000)
SWUNG_UP = Recorded("sac", "gymnax:Pendulum-v1", 20_000, FAST, sampled=True)
RUNNING = ("warm_up_steps=10000", "capacity=300000")


def memory_row(memory: str, **options: Any) -> Row:
    """CartPole of which the velocities are not seen."""
    settings = (*MEMORY, memory)
    return Row("ppo", HIDDEN, steps=200_000, target=475, settings=settings, wrappers=MEMORY_NORMALISED, **options)


def asynchronous_rows(env: str) -> tuple[Row, ...]:
    """CartPole with roles that go at their own pace."""
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


def replayed(algo: str, env: str, steps: int, target: float, *settings: str, **options: Any) -> Row:
    """Learning from a table, judged without exploration."""
    return Row(algo, env, steps, target, settings=settings, seeds=(0, 1, 2), played=True, **options)


REPLAYED = (
    replayed("dqn", "gymnax:CartPole-v1", 200_000, 475),
    replayed("dqn", "gymnax:CartPole-v1", 200_000, 475, *RAINBOW),
    replayed("dqn", "gymnax:CartPole-v1", 200_000, 475, *APEX, layout="apex:actors=2"),
    replayed("sac", "gymnax:Pendulum-v1", 20_000, -200, *FAST),
    replayed("ddpg", "gymnax:Pendulum-v1", 30_000, -200, *FAST),
    replayed("d4pg", "gymnax:Pendulum-v1", 30_000, -200, *FAST, *RETURNS, "prioritised=true"),
    replayed("discrete_sac", "gymnax:CartPole-v1", 100_000, 475, *CHOICES),
    replayed("sac", "gym:HalfCheetah-v5", 300_000, 4000, *RUNNING),
    replayed("td3", "gym:HalfCheetah-v5", 300_000, 4000, *RUNNING),
    replayed("r2d2", "gymnax:MemoryChain-bsuite", 100_000, 0.95, "memory=gru", "epsilon=0.01"),
    replayed("bc", "gymnax:CartPole-v1", 500_000, 475, recorded=BALANCED),
    replayed("cql", "gymnax:CartPole-v1", 500_000, 475, recorded=BALANCED),
    replayed("bc", "gymnax:Pendulum-v1", 500_000, -200, recorded=SWUNG_UP),
    replayed("continuous_cql", "gymnax:Pendulum-v1", 1_000_000, -200, *PRESSED, recorded=SWUNG_UP),
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
    Row("ppo", "gym:LunarLander-v3", steps=1_000_000, target=200, settings=LANDER, wrappers=SCALED),
    Row(
        "ppo",
        "gym:LunarLander-v3",
        steps=1_000_000,
        target=200,
        settings=LANDER,
        wrappers=SCALED,
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
    memory_row("memory=gru"),
    memory_row("memory=lstm"),
    memory_row("memory=none", fails=True, seeds=(0, 1, 2)),
    Row("ppo", "gymnax:MemoryChain-bsuite", steps=300_000, target=0.95, settings=(*CHAIN, "memory=gru")),
    Row("ppo", "gymnax:MemoryChain-bsuite", steps=300_000, target=0.95, settings=CHAIN, fails=True, seeds=(0, 1, 2)),
    *REPLAYED,
)


def run_weft(*words: str) -> str:
    """What a command of weft prints."""
    command = [sys.executable, "-m", "weft", *words]
    return subprocess.run(command, stdout=subprocess.PIPE, check=True, cwd=Path(__file__).parents[1], text=True).stdout


def record(source: Recorded, folder: str) -> str:
    """The dataset, made anew."""
    given = ["--set", *source.settings] if source.settings else []
    run_weft("train", source.algo, source.env, "--steps", str(source.steps), *given, "--out", f"{folder}/run")
    how = ["--sample"] if source.sampled else []
    run_weft("eval", f"{folder}/run", "--episodes", "40", *how, "--record", f"{folder}/played")
    return f"{folder}/played"


def train_seed(row: Row, seed: int, dataset: str) -> dict[str, Any]:
    """What one seed comes to, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        run = ["--seed", str(seed), "--out", f"{folder}/run", "--json"]
        printed = run_weft("train", row.algo, row.env, *row.options(dataset), *run)
    result = json.loads(printed.splitlines()[-1])
    result["return"] = result["evaluation" if row.played else "return_mean"]
    print(row.name, f"seed {seed}:", result["return"], flush=True)
    return result


def train_rows(rows: list[Row], jobs: int) -> list[dict[str, Any]]:
    """The rows with the return and time of every seed."""
    with ThreadPoolExecutor(jobs) as pool, tempfile.TemporaryDirectory() as folder:
        sources = dict.fromkeys(row.recorded for row in rows if row.recorded)
        datasets = {source: record(source, f"{folder}/{number}") for number, source in enumerate(sources)}
        played = [datasets[row.recorded] if row.recorded else "" for row in rows]
        results = [
            [pool.submit(train_seed, row, seed, dataset) for seed in row.seeds]
            for row, dataset in zip(rows, played, strict=True)
        ]
        found = [[future.result() for future in futures] for futures in results]
    return [outcome(row, seeds) for row, seeds in zip(rows, found, strict=True)]


def outcome(row: Row, results: list[dict[str, Any]]) -> dict[str, Any]:
    returns = [result["return"] for result in results]
    return {
        "name": row.name,
        **dataclasses.asdict(row),
        "steps_done": results[0]["steps"],
        "returns": returns,
        "wall_s": [result["wall_s"] for result in results],
        "passed": all((found is not None and found >= row.target) != row.fails for found in returns),
    }


def table(records: list[dict[str, Any]]) -> str:
    """The records as markdown."""
    lines = [
        "<!-- Written by benchmarks/learning.py. -->",
        "| algorithm | environment | layout | settings | steps | target | return by seed | passed |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for record in records:
        returns = ", ".join("-" if x is None else f"{x:.1f}" for x in record["returns"])
        settings = " ".join((*record.get("wrappers", ()), *record["settings"])) or "defaults"
        target = f"{'below ' if record.get('fails') else ''}{record['target']:g}"
        returns += " (played)" if record.get("played") else ""
        verdict = "yes" if record["passed"] else "no"
        cells = (record["algo"], record["env"], record["layout"], settings, f"{record['steps_done']:,}")
        lines.append("| " + " | ".join((*cells, target, returns, verdict)) + " |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[""], help="rows whose name holds one of these")
    parser.add_argument("--seeds", type=int, nargs="+", help="instead of the rows' own")
    parser.add_argument("--layout", help="instead of the rows' own")
    parser.add_argument("--jobs", type=int, default=1, help="seeds to train at a time (default: 1)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for learning.md and learning.json")
    args = parser.parse_args()
    given = {name: value for name, value in (("seeds", args.seeds), ("layout", args.layout)) if value is not None}
    rows = [dataclasses.replace(row, **given) for row in ROWS if any(only in row.name for only in args.only)]
    args.out.mkdir(parents=True, exist_ok=True)
    kept = args.out / "learning.json"
    known = {record["name"]: record for record in (json.loads(kept.read_text()) if kept.exists() else [])}
    known |= {record["name"]: record for record in train_rows(rows, args.jobs)}
    order = [row.name for row in ROWS]
    records = [known[name] for name in (*order, *(set(known) - set(order))) if name in known]
    kept.write_text(json.dumps(records, indent=2) + "\n")
    (args.out / "learning.md").write_text(table(records))
    return 0 if all(record["passed"] for record in records) else 1


if __name__ == "__main__":
    raise SystemExit(main())
