"""How well the algorithms learn: train every row over its seeds, and write what came of it as a table.

    python benchmarks/learning.py                 # every row: benchmarks/results/learning.{md,json}
    python benchmarks/learning.py --only Pendulum --seeds 0 1 --layout actors

A return is the mean over the most recent iterations that together finished at least 100 episodes, while the policy
still explores. A row passes if every seed reaches its target.
"""

import argparse
import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.algos import ALGOS
from weft.runtime import driver
from weft.settings import configure

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Row:
    """One claim: this algorithm reaches this return on this environment within so many steps, on every seed."""

    algo: str
    env: str
    steps: int
    target: float
    settings: tuple[str, ...] = ()
    layout: str = "fused"
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)

    @property
    def name(self) -> str:
        return " ".join((self.algo, self.env, self.layout, *self.settings))


ROWS = (
    Row("ppo", "gymnax:CartPole-v1", steps=490_000, target=475),
    Row("ppo", "gymnax:CartPole-v1", steps=490_000, target=475, layout="actors:actors=2"),
    Row("ppo", "gymnax:CartPole-v1", steps=490_000, target=475, layout="seed:envs=2"),
    Row("ppo", "gymnax:CartPole-v1", steps=490_000, target=475, layout="allreduce:workers=2"),
    Row("a2c", "gymnax:CartPole-v1", steps=990_000, target=450),
    Row("reinforce", "gymnax:CartPole-v1", steps=990_000, target=450),
    Row(
        "ppo",
        "gymnax:Pendulum-v1",
        steps=990_000,
        target=-300,
        settings=("gamma=0.9", "lr=1e-3", "epochs=10", "entropy_weight=0"),
    ),
)


def train_row(row: Row) -> dict[str, Any]:
    """The row with the return and time of every seed."""
    algo = configure(ALGOS[row.algo], row.settings)
    results = [driver.train(algo, row.env, layout=row.layout, steps=row.steps, seed=seed) for seed in row.seeds]
    returns = [result.return_mean for result in results]
    return {
        **dataclasses.asdict(row),
        "steps_done": results[0].steps,
        "returns": returns,
        "wall_s": [result.wall_s for result in results],
        "passed": all(found is not None and found >= row.target for found in returns),
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
        settings = " ".join(record["settings"]) or "defaults"
        lines.append(
            f"| {record['algo']} | {record['env']} | {record['layout']} | {settings} | {record['steps_done']:,} "
            f"| {record['target']:g} | {returns} | {'yes' if record['passed'] else 'no'} |"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="rows whose name holds this")
    parser.add_argument("--seeds", type=int, nargs="+", help="instead of the rows' own")
    parser.add_argument("--layout", help="instead of the rows' own")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for learning.md and learning.json")
    args = parser.parse_args()
    given = {name: value for name, value in (("seeds", args.seeds), ("layout", args.layout)) if value is not None}
    records = []
    for row in (dataclasses.replace(row, **given) for row in ROWS if args.only in row.name):
        records.append(train_row(row))
        print(row.name, records[-1]["returns"], flush=True)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "learning.json").write_text(json.dumps(records, indent=2) + "\n")
    (args.out / "learning.md").write_text(table(records))
    return 0 if all(record["passed"] for record in records) else 1


if __name__ == "__main__":
    raise SystemExit(main())
