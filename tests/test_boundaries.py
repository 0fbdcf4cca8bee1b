"""What may know of what, and how long a file may be: the rules that keep algorithms and layouts apart."""

import ast
from pathlib import Path

import pytest

import weft
from weft.algorithm import Algorithm
from weft.algos import ALGOS
from weft.algos.off_policy import OffPolicy
from weft.algos.on_policy import OnPolicy

ROOT = Path(weft.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))
ALGORITHMS = sorted((ROOT / "algos").glob("*.py"))
LAYOUTS = sorted((ROOT / "layout").glob("*.py"))
RUNTIME = sorted((ROOT / "runtime").glob("*.py"))
PLACEMENT = ("threading", "multiprocessing", "concurrent", "queue", "ray", "jax.sharding", "jax.experimental.shard_map")
# Types and marks that algorithms share, and networks: a reader of an update knows them or takes them as given.
VOCABULARY = (
    "weft.algorithm",
    "weft.datasets",
    "weft.envs.timestep",
    "weft.errors",
    "weft.fragments",
    "weft.metrics",
    "weft.nets",
    "weft.replay.interface",
)
# All that a reader opens beside the file itself to know the whole update: the base, and these names of `weft.ops`.
READING_LISTS = {
    "ppo": """
        weft.algos.on_policy: OnPolicy
        weft.ops.batches: in_groups shuffled swap_time take_items
        weft.ops.losses: clipped_squared_error clipped_surrogate count normalise squared_error
        weft.ops.memory: Past unroll
        weft.ops.returns: gae
        weft.ops.rollout: Transition state_values
    """,
    "ddpg": """
        weft.algos.off_policy: OffPolicy
        weft.ops.actor_critic: CriticLoss critic_loss lowest_q
        weft.ops.losses: average means
        weft.ops.n_step: at_step first_step n_step single_steps
        weft.ops.rollout: Transition
        weft.ops.updates: LearnerState Loss actor_critic_adam
    """,
    "sac": """
        weft.algos.off_policy: OffPolicy
        weft.ops.actor_critic: CriticLoss critic_loss lowest_q sac_policy_loss temperature_loss
        weft.ops.losses: average means
        weft.ops.n_step: at_step first_step n_step single_steps
        weft.ops.rollout: Transition
        weft.ops.updates: LearnerState Loss actor_critic_adam
    """,
}


def label(path: Path) -> str:
    return str(path.relative_to(ROOT))


def imports(path: Path) -> set[str]:
    """Every module that a file names: imported, or reached through an imported one (`jax.sharding.Mesh`)."""
    tree = ast.parse(path.read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Attribute):
            names.add(ast.unparse(node))
    return names


def reaches(names: set[str], module: str) -> bool:
    return any(name == module or name.startswith(module + ".") for name in names)


@pytest.mark.parametrize("path", ALGORITHMS, ids=label)
def test_an_algorithm_knows_nothing_of_placement(path):
    names = imports(path)
    assert not [module for module in PLACEMENT if reaches(names, module)]
    assert not [part for part in ("layout", "project", "runtime", "graph") if reaches(names, f"weft.{part}")]


@pytest.mark.parametrize("kind", ALGOS.values(), ids=ALGOS)
def test_an_algorithm_inherits_from_one_base_and_from_no_other_algorithm(kind):
    assert kind.__bases__ in ((OnPolicy,), (OffPolicy,))
    assert OnPolicy.__bases__ == OffPolicy.__bases__ == (Algorithm,)


def reading_list(path: Path) -> dict[str, set[str]]:
    """The names that a file imports from weft's modules, but for the vocabulary."""
    names: dict[str, set[str]] = {}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            assert not any(alias.name.split(".")[0] == "weft" for alias in node.names), "import names, not modules"
        elif isinstance(node, ast.ImportFrom) and reaches({node.module or ""}, "weft"):
            names.setdefault(node.module or "", set()).update(alias.name for alias in node.names)
    return {
        module: found for module, found in names.items() if not any(reaches({module}, known) for known in VOCABULARY)
    }


@pytest.mark.parametrize("name", ALGOS)
def test_an_update_needs_the_file_its_base_and_names_of_ops_alone(name):
    names = reading_list(ROOT / "algos" / f"{name}.py")
    base = ALGOS[name].__base__
    assert base is not None and names.pop(base.__module__) == {base.__name__}
    assert all(reaches({module}, "weft.ops") for module in names), sorted(names)


@pytest.mark.parametrize("base", ["on_policy", "off_policy"])
def test_a_base_needs_ops_and_replay_tables_alone(base):
    names = reading_list(ROOT / "algos" / f"{base}.py")
    assert all(reaches({module}, "weft.ops") or reaches({module}, "weft.replay") for module in names), sorted(names)


@pytest.mark.parametrize(("name", "expected"), READING_LISTS.items(), ids=READING_LISTS)
def test_the_reading_list_of_an_update(name, expected):
    lines = (line.split(":") for line in expected.strip().splitlines())
    assert reading_list(ROOT / "algos" / f"{name}.py") == {
        module.strip(): set(names.split()) for module, names in lines
    }


@pytest.mark.parametrize("path", LAYOUTS, ids=label)
def test_a_layout_knows_no_algorithm(path):
    assert not reaches(imports(path), "weft.algos")


@pytest.mark.parametrize("path", RUNTIME, ids=label)
def test_the_runtime_does_not_import_evaluation(path):
    assert not reaches(imports(path), "weft.evaluation")


@pytest.mark.parametrize("path", ALGORITHMS, ids=label)
def test_an_algorithm_is_at_most_200_lines(path):
    assert len(path.read_text().splitlines()) <= 200


@pytest.mark.parametrize("path", MODULES, ids=label)
def test_a_module_is_at_most_500_lines_and_says_what_it_is(path):
    text = path.read_text()
    assert len(text.splitlines()) <= 500
    assert path.name == "__init__.py" or ast.get_docstring(ast.parse(text))


@pytest.mark.parametrize(
    ("source", "module", "found"),
    [
        ("import queue", "queue", True),
        ("from jax import sharding", "jax.sharding", True),
        ("import jax\njax.sharding.Mesh", "jax.sharding", True),
        ("import rayon", "ray", False),
    ],
)
def test_imports_are_seen_however_they_are_written(tmp_path, source, module, found):
    (tmp_path / "m.py").write_text(source)
    assert reaches(imports(tmp_path / "m.py"), module) is found
