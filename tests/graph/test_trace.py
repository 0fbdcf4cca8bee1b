"""Tracing: names of leaves and metrics, counts of steps, refused algorithms."""

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from tests.toys import env_of, on, toy
from weft import Algorithm, fragment
from weft.errors import WeftError
from weft.graph.trace import record_reads, refuse_unread_settings, trace
from weft.metrics import Mean
from weft.runtime.driver import Plan, train_in_memory


def test_leaves_and_metrics_are_named_by_their_paths() -> None:
    algo = toy({"net": [jnp.zeros(2), {"w": jnp.zeros(())}]}, lambda s: (s, {"loss": Mean.of(s["net"][0])}))
    traced = trace(algo, env_of(4))
    assert traced.state_names == ("state['net'][0]", "state['net'][1]['w']")
    assert traced.metric_names == ("metrics['loss'].total", "metrics['loss'].count")
    assert traced.groups[2] == traced.groups[3] and len(set(traced.groups)) == 3


@pytest.mark.parametrize("length", [1, 5])
def test_environment_steps_are_counted_per_iteration(length: int) -> None:
    def loop(s):
        x, _ = lax.scan(lambda c, _: (on("env")(c), None), s["x"], length=3)
        return {"x": on("env.episodes")(on("env")(x))}

    assert trace(toy({"x": jnp.zeros(8)}, loop, num_envs=8), env_of(8), length).steps_per_iteration == 8 * 4


@pytest.mark.parametrize(
    ("loop", "message"),
    [
        (lambda s: {"x": s["x"].astype(jnp.int32)}, r"state\['x'\] is float32\[4\] before step and int32\[4\] after"),
        (lambda s: {"x": s["x"][:2]}, r"state\['x'\] is float32\[4\] before step and float32\[2\] after"),
        (lambda s: {"x": s["x"], "y": s["x"]}, "a state with the structure of init's"),
        (lambda s: s["x"], r"must return \(state, metrics\)"),
        (lambda s: (s, {"loss": jnp.zeros(())}), "dictionary of weft.Mean"),
    ],
    ids=["dtype", "shape", "structure", "result", "metrics"],
)
def test_a_step_that_changes_the_structure_of_the_state_is_refused(loop: Any, message: str) -> None:
    with pytest.raises(WeftError, match=message):
        trace(toy({"x": jnp.zeros(4)}, loop), env_of(4))


@dataclass(frozen=True, kw_only=True)
class Settings(Algorithm):
    num_envs: int = 4
    used: float = 1.0
    unused: float = 2.0
    built: tuple[int, ...] = field(default_factory=lambda: (1, 2))

    def init(self, env: Any, key: jax.Array) -> Any:
        return jnp.zeros(env.num_envs)

    def step(self, env: Any, state: Any) -> Any:
        return self.move(state), {}

    @fragment(name="env")
    def move(self, state: Any) -> Any:
        return state + self.used


@pytest.mark.parametrize("settings", [{"unused": 3.0}, {"built": (1,)}], ids=["plain", "factory"])
def test_an_unread_setting_with_another_value_than_its_default_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(WeftError, match=f"Settings never read its setting {next(iter(settings))}="):
        Plan.of(Settings(**settings), env_of, "fused").project()


def test_settings_that_are_read_or_keep_their_default_are_accepted_every_time() -> None:
    for used in (3.0, 3.0, 1.0):
        Plan.of(Settings(used=used, num_envs=8), env_of, "fused").project()


def test_record_reads_records_settings_when_a_fragment_reads_them() -> None:
    copy, reads = record_reads(Settings(used=5.0))
    assert not reads
    assert float(copy.move(jnp.float32(1))) == 6  # type: ignore[attr-defined]
    assert reads == {"used"}
    refuse_unread_settings(Settings(used=5.0), reads)


def test_an_algorithm_that_never_steps_its_environment_is_refused() -> None:
    with pytest.raises(WeftError, match="Toy never calls env.step"):
        train_in_memory(toy({"x": jnp.zeros(4)}, lambda s: {"x": on("a")(s["x"])}), env_of, steps=10)


def test_unused_results_are_not_computed_but_their_fragments_are_listed() -> None:
    def loop(s):
        on("unused")(s["x"])
        return {"x": on("a")(s["x"])}

    traced = trace(toy({"x": jnp.zeros(4)}, loop), env_of(4))
    assert traced.fragments == {"a", "unused"}
    assert "unused" not in str(traced.jaxpr)
