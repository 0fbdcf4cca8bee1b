"""Checks every algorithm under layouts with several replicas against the fused run, and writes a table of the results.

    python benchmarks/checks.py                      # writes results/checks.md
    python benchmarks/checks.py --only ppo,sac       # these algorithms alone; the others keep their results

A cell is what `weft check` finds: `bits` if all leaves of the state equal those of the fused run bit for bit; else the
largest difference as a part of what the rounding of sums may cause.
"""

import argparse
import json
import os
import time
from pathlib import Path

os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4".strip()

RESULTS = Path(__file__).parent / "results"
FORMS = (
    "actors:actors=4",
    "seed:envs=4",
    "impala:actors=4,take=4,max_lag=0",
    "allreduce:workers=2",
    "fused:devices=4",
)
KINDS = {"gymnax": "on the device", "gym": "on the host"}
DISCRETE, CONTINUOUS = "CartPole-v1", "Pendulum-v1"
ITERATIONS = 3
SMALL = {"num_envs": 8, "horizon": 6, "hidden": (8,), "epochs": 2, "minibatches": 2, "memory_size": 4}
SMALL |= {"batch_size": 16, "updates": 2, "capacity": 800, "warm_up_steps": 1, "burn_in": 2, "sequence": 4, "period": 2}


def check_cell(name: str, form: str, kind: str) -> str:
    """The result of one check, as an entry of the table."""
    from dataclasses import fields

    from weft import check
    from weft.algos import ALGOS

    algorithm = ALGOS[name]
    known = {field.name for field in fields(algorithm)}
    settings = {key: value for key, value in SMALL.items() if key in known}
    if name == "reinforce":
        settings["horizon"] = 24  # learns from finished episodes only
    task = CONTINUOUS if name in ("ddpg", "td3", "d4pg", "sac") else DISCRETE
    found = check(algorithm(**settings), f"{kind}:{task}", layout=form, iterations=ITERATIONS)
    if not found.equal:
        return "different"
    if found.identical:
        return "bits"
    ratios = [leaf.largest / leaf.allowed for leaf in found.leaves if leaf.standard != "nothing" and leaf.allowed]
    result = f"{max(ratios):.1g} of rounding" if any(ratios) else "bits"
    left_out = sum(leaf.standard == "nothing" for leaf in found.leaves)
    return result + (f", {left_out} of {len(found.leaves)} leaves not compared" if left_out else "")


def collecting() -> list[str]:
    """The algorithms that step environments."""
    from weft.algos import ALGOS

    return [name for name in ALGOS if name not in ("bc", "cql", "continuous_cql")]


def table(cells: dict[str, str]) -> str:
    """The results as Markdown: a table for each kind of environment."""
    lines = [
        "# Replicas against the fused run",
        "",
        "Made by `python benchmarks/checks.py`; docs/replicas.md explains it.",
        "",
    ]
    for kind, where in KINDS.items():
        lines += [f"Environments {where} (`{kind}:{DISCRETE}`, `{kind}:{CONTINUOUS}`), {ITERATIONS} iterations:", ""]
        lines += [
            "| algorithm | " + " | ".join(f"`{form}`" for form in FORMS) + " |",
            "| --- " * (len(FORMS) + 1) + "|",
        ]
        for name in dict.fromkeys(key.split("/")[0] for key in cells):
            row = [cells.get(f"{name}/{form}/{kind}", "") for form in FORMS]
            lines.append(f"| {name} | " + " | ".join(row) + " |")
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="algorithms, joined by commas")
    args = parser.parse_args()
    path = RESULTS / "checks.json"
    cells: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}
    for name in args.only.split(",") if args.only else collecting():
        for kind in KINDS:
            for form in FORMS:
                started = time.perf_counter()
                cells[f"{name}/{form}/{kind}"] = check_cell(name, form, kind)
                print(
                    name,
                    form,
                    kind,
                    cells[f"{name}/{form}/{kind}"],
                    f"{time.perf_counter() - started:.1f} s",
                    flush=True,
                )
        path.write_text(json.dumps(cells, indent=1) + "\n")
        (RESULTS / "checks.md").write_text(table(cells))


if __name__ == "__main__":
    main()
