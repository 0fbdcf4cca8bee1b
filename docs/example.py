"""The loop that how-it-works.md explains. `python docs/example.py` updates the generated parts of the pages."""

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from weft import Algorithm, Layout, Mean, Role, WeftError, all_mean, check, fragment
from weft.algos.ppo import PPO
from weft.graph.printer import show
from weft.project.printer import as_mermaid, as_text, describe
from weft.project.project import Projection, project
from weft.runtime.driver import Plan

ROOT = Path(__file__).parents[1]
PAGES = (*(ROOT / "docs" / f"{name}.md" for name in ("how-it-works", "layouts", "map")), ROOT / "README.md")


# begin loop
@dataclass(frozen=True, kw_only=True)
class Chase(Algorithm):
    """Pushes `num_envs` points towards a target; the learner moves the target towards their mean."""

    def init(self, env: Any, key: jax.Array) -> dict[str, jax.Array]:
        return {"key": key, "target": jnp.zeros(()), "points": jnp.arange(float(env.num_envs))}

    def step(self, env: Any, state: dict[str, jax.Array]) -> tuple[dict[str, jax.Array], dict[str, Mean]]:
        key, key_noise = jax.random.split(state["key"])

        def tick(points: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
            push = self.act(state["target"], points, key)
            points = self.move(points, push)
            return points, points

        points, seen = lax.scan(tick, state["points"], jax.random.split(key_noise, 3))
        target = self.learn(state["target"], seen)
        return {"key": key, "target": target, "points": points}, {"point": Mean.of(seen)}

    @fragment
    def act(self, target: jax.Array, points: jax.Array, key: jax.Array) -> jax.Array:
        return 0.1 * (target - points) + 0.01 * jax.random.normal(key, points.shape)

    @fragment(name="env")
    def move(self, points: jax.Array, push: jax.Array) -> jax.Array:
        return points + push

    @fragment
    def learn(self, target: jax.Array, seen: jax.Array) -> jax.Array:
        return target + 0.5 * (all_mean(seen.mean()) - target)


# end loop


central = Layout(Role("world", runs=("env",)), Role("brain", runs=("act", "learn")), name="central")
many = Layout(Role("world", runs=("env",), replicas=4), Role("brain", runs=("act", "learn")), name="many")
workers = Layout(Role("worker", runs=("*",), replicas=4), name="workers")
lanes = Layout(
    Role("player", runs=("env", "act"), replicas=4),
    Role("brain", runs=("learn",), take=1),
    registers=[("brain", "player")],
    max_lag=4,
    name="lanes",
)
in_step = Layout(
    Role("player", runs=("env", "act"), replicas=4),
    Role("brain", runs=("learn",), take=4),
    registers=[("brain", "player")],
    max_lag=0,
    name="all four taken, max_lag=0",
)


def env_of(count: int) -> Any:
    return SimpleNamespace(num_envs=count)


def projected(layout: Layout) -> Projection:
    return project(Chase(num_envs=8), env_of, layout)


def refusals() -> str:
    """The messages for layouts that cannot work."""
    tries = (
        Layout(Role("world", runs=("env",)), Role("brain", runs=("act",))),
        Layout(Role("world", runs=("env",)), Role("brain", runs=("act", "lern"))),
        Layout(Role("world", runs=("env",), replicas=3), Role("brain", runs=("*",))),
    )
    return "\n\n".join(f"{layout}\n  {_refusal(layout)}" for layout in tries)


def _refusal(layout: Layout) -> str:
    try:
        projected(layout)
    except WeftError as error:
        return str(error)
    raise AssertionError(f"{layout} should be refused")


def needs() -> str:
    """The values of the loop that each role needs, and those that cross."""
    view = next(iter(projected(central).views.values()))
    loop = view.graph.nodes[0]
    inner = view.demand.bodies[loop]
    names = {
        role: sorted({value.name for value in values if value.name.startswith("state")})
        for role, values in inner.needed.items()
    }
    lines = [f"{role} needs {', '.join(found)}" for role, found in names.items()]
    crossings = [
        f"{key[0]} crosses from {source} to {dest}, {times} times"
        for (key, source, dest), times in view.crossings().items()
    ]
    return "\n".join(lines + crossings)


PRINTS: dict[str, Callable[[], str]] = {
    "loop": lambda: Path(__file__).read_text().partition("# begin loop\n")[2].partition("\n\n\n# end loop")[0],
    "graph": lambda: show(next(iter(projected(central).views.values())).graph),
    "needs": needs,
    "central": lambda: as_text(describe(projected(central))),
    "many": lambda: as_text(describe(projected(many))),
    "workers": lambda: as_text(describe(projected(workers))),
    "lanes": lambda: as_text(describe(projected(lanes))),
    "instep": lambda: check(Chase(num_envs=8), env_of, layout=in_step, iterations=20).table(),
    "check": lambda: check(Chase(num_envs=8), env_of, layout=central, iterations=20).table(),
    "refusals": refusals,
}


def drawing(layout: str) -> str:
    """PPO on CartPole under a layout of the catalogue, as `weft graph --format mermaid` draws it."""
    return as_mermaid(describe(Plan.of(PPO(), "gymnax:CartPole-v1", layout).project()))


def table(name: str) -> str:
    """A table of the layouts or the packages, from the code that tests them."""
    tables = import_module("tests.matrix").TABLES | import_module("tests.layers").TABLES
    return tables[name]()


def fill(page: str) -> str:
    """The page with its generated parts up to date: every fenced block after a line `<!-- print: NAME -->` or
    `<!-- graph: LAYOUT -->`, and the text between `<!-- table: NAME -->` and the next `<!-- end -->`."""

    def block(found: re.Match[str]) -> str:
        text = PRINTS[found["name"]]() if found["kind"] == "print" else drawing(found["name"])
        return f"{found['head']}{text}\n```"

    pattern = r"(?P<head><!-- (?P<kind>print|graph): (?P<name>\w+) -->\n```\w*\n)(?P<body>.*?)```"
    page = re.sub(pattern, block, page, flags=re.DOTALL)
    pattern = r"(?P<head><!-- table: (?P<name>\w+) -->\n).*?(?P<end><!-- end -->)"
    return re.sub(
        pattern, lambda found: f"{found['head']}{table(found['name'])}\n{found['end']}", page, flags=re.DOTALL
    )


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    for path in PAGES:
        path.write_text(fill(path.read_text()))
        sys.stdout.write(f"wrote {path.name}\n")
