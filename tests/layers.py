"""The packages of `weft`, what each holds and which others it may import; and the map of them in `docs/map.md`."""

import ast
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import weft

ROOT = Path(weft.__file__).parent


@dataclass(frozen=True)
class Package:
    """A package, or a few top-level modules that belong together."""

    about: str
    imports: tuple[str, ...] = ()
    """The other packages that it may import."""
    modules: tuple[str, ...] = ()
    """Its modules where they are not those of one folder."""


FOUNDATION = "foundation"

PACKAGES: dict[str, Package] = {
    FOUNDATION: Package(
        "Errors, metric pairs, the version, importing by name.",
        modules=("weft.errors", "weft.metrics", "weft.modules", "weft.version"),
    ),
    "marks": Package(
        "Marks for authors: fragments, merges, host calls.",
        imports=(FOUNDATION,),
        modules=("weft.fragments", "weft.host"),
    ),
    "weft.envs": Package("The interface of environments: time steps, spaces, episodes.", imports=(FOUNDATION,)),
    "weft.envs.pools": Package(
        "Pools that step several host environments, in process or in worker processes.",
        imports=(FOUNDATION, "weft.envs"),
    ),
    "weft.envs.adapters": Package(
        "One module per environment library.", imports=(FOUNDATION, "marks", "weft.envs", "weft.envs.pools")
    ),
    "weft.envs.wrappers": Package(
        "Normalisation, frame stacking, time limits.", imports=(FOUNDATION, "marks", "weft.envs")
    ),
    "worlds": Package(
        "Environments by name, with their wrappers.",
        imports=(FOUNDATION, "weft.envs", "weft.envs.wrappers"),
        modules=("weft.envs", "weft.envs.registry", "weft.envs.world"),
    ),
    "weft.replay": Package("Replay tables, on the host and on the device.", imports=(FOUNDATION, "marks")),
    "weft.replay.server": Package("Replay tables served to other processes.", imports=(FOUNDATION, "weft.replay")),
    "algorithm": Package(
        "The interface of algorithms, and their settings as text.",
        imports=(FOUNDATION, "weft.envs"),
        modules=("weft.algorithm", "weft.settings"),
    ),
    "weft.ops": Package(
        "Pure functions: returns, losses, distributions, rollouts.",
        imports=(FOUNDATION, "marks", "weft.envs", "weft.replay"),
    ),
    "weft.nets": Package("Networks.", imports=(FOUNDATION, "weft.envs", "weft.ops")),
    "weft.datasets": Package(
        "Recorded experience: writing it, reading it, drawing batches from it.",
        imports=(FOUNDATION, "marks", "weft.envs", "weft.envs.wrappers", "worlds", "weft.replay", "weft.ops"),
    ),
    "weft.algos": Package(
        "Algorithms, one file each.",
        imports=(
            FOUNDATION,
            "marks",
            "weft.envs",
            "algorithm",
            "weft.replay",
            "weft.datasets",
            "weft.ops",
            "weft.nets",
        ),
    ),
    "weft.layout": Package("Layouts and their catalogue.", imports=(FOUNDATION,)),
    "weft.graph": Package(
        "The traced loop as a graph.", imports=(FOUNDATION, "marks", "weft.envs", "algorithm", "weft.layout")
    ),
    "weft.sharding": Package(
        "How the values that replicas hold make up the values of the whole loop.", imports=(FOUNDATION, "weft.graph")
    ),
    "weft.project": Package(
        "The passes from the graph to one program per role.",
        imports=(FOUNDATION, "marks", "weft.envs", "algorithm", "weft.layout", "weft.graph", "weft.sharding"),
    ),
    "weft.report": Package(
        "Observers of a run: files, progress, metrics.", imports=(FOUNDATION, "worlds", "algorithm")
    ),
    "weft.runtime": Package(
        "The engine that executes programs, and the driver of a run.",
        imports=(
            FOUNDATION,
            "marks",
            "worlds",
            "algorithm",
            "weft.layout",
            "weft.graph",
            "weft.sharding",
            "weft.project",
            "weft.report",
        ),
    ),
    "weft.evaluation": Package(
        "Playing with a trained policy, during training or afterwards.",
        imports=(
            FOUNDATION,
            "marks",
            "weft.envs",
            "weft.envs.wrappers",
            "worlds",
            "algorithm",
            "weft.datasets",
            "weft.algos",
            "weft.report",
            "weft.runtime",
        ),
    ),
    "weft": Package(
        "Functions and commands for users.",
        imports=(
            FOUNDATION,
            "marks",
            "weft.envs",
            "worlds",
            "algorithm",
            "weft.replay.server",
            "weft.datasets",
            "weft.algos",
            "weft.layout",
            "weft.graph",
            "weft.project",
            "weft.report",
            "weft.runtime",
            "weft.evaluation",
        ),
        modules=("weft", "weft.__main__", "weft.cli", "weft.commands", "weft.run"),
    ),
}


def package_of(module: str) -> str:
    """The package that a module belongs to: `weft.envs.pools` for `weft.envs.pools.vector`."""
    for name, package in PACKAGES.items():
        if module in package.modules:
            return name
    parents = [name for name in PACKAGES if module == name or module.startswith(f"{name}.")]
    if not parents:
        raise LookupError(f"{module} is in no package of tests/layers.py: add it to one")
    return max(parents, key=len)


@cache
def sources(root: Path = ROOT) -> dict[str, Path]:
    """Every module below `root`, by its dotted name."""
    return {_module_name(path, root): path for path in sorted(root.rglob("*.py"))}


@cache
def module_imports(root: Path = ROOT) -> dict[str, frozenset[str]]:
    """The modules below `root` that each of them imports, at its top or inside a function."""
    known = sources(root)
    return {name: frozenset(_imported(path, known)) - {name} for name, path in known.items()}


def package_imports() -> dict[str, set[str]]:
    """The packages that each package imports."""
    found: dict[str, set[str]] = {name: set() for name in PACKAGES}
    for module, imported in module_imports().items():
        found[package_of(module)] |= {package_of(other) for other in imported}
    return {name: imported - {name} for name, imported in found.items()}


def cycle(imports: Mapping[str, Iterable[str]]) -> list[str]:
    """A cycle of imports, if there is one."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def layers() -> list[list[str]]:
    """The packages from the bottom up: each layer imports only from layers below it."""
    sorter = TopologicalSorter(package_imports())
    sorter.prepare()
    found: list[list[str]] = []
    while sorter.is_active():
        ready = sorter.get_ready()
        found.append(sorted(ready, key=list(PACKAGES).index))
        sorter.done(*ready)
    return found


def table() -> str:
    """The contents and the imports of each package as Markdown, from the bottom layer up."""
    imports = package_imports()
    rows = [
        f"| {number} | `{name}` | {PACKAGES[name].about} {_modules(name)}| {_listed(imports[name])} |"
        for number, layer in enumerate(layers())
        for name in layer
    ]
    return "\n".join(["| layer | package | contents | imports |", "| --- | --- | --- | --- |", *rows])


def drawing() -> str:
    """The imports between packages as a Mermaid flowchart, without the foundation and without indirect arrows."""
    imports = {name: found - {FOUNDATION} for name, found in package_imports().items() if name != FOUNDATION}
    reach = {name: set().union(*(_reachable(other, imports) for other in found)) for name, found in imports.items()}
    arrows = [
        f"  {_node(name)} --> {_node(other)}"
        for name in PACKAGES
        if name in imports
        for other in PACKAGES
        if other in imports[name] - reach[name]
    ]
    nodes = [f'  {_node(name)}["{name}"]' for name in imports]
    return "\n".join(["```mermaid", "flowchart TD", *nodes, *arrows, "```"])


TABLES: dict[str, Callable[[], str]] = {"drawing": drawing, "packages": table}


def _reachable(name: str, imports: Mapping[str, set[str]]) -> set[str]:
    return imports[name].union(*(_reachable(other, imports) for other in imports[name]))


def _node(name: str) -> str:
    return name.replace(".", "_").replace(" ", "_")


def _modules(name: str) -> str:
    """The modules of a group that is not one folder."""
    modules = [f"`{module}`" for module in PACKAGES[name].modules]
    return f"Modules: {', '.join(modules)}. " if modules else ""


def _listed(names: set[str]) -> str:
    return ", ".join(f"`{name.removeprefix('weft.')}`" for name in PACKAGES if name in names) or "nothing"


def _module_name(path: Path, root: Path) -> str:
    parts = path.relative_to(root.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported(path: Path, known: Mapping[str, Path]) -> Iterable[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                if submodule in known or node.module in known:
                    yield submodule if submodule in known else node.module
