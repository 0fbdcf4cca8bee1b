"""Training makes the requested number of steps, in whole iterations, under any layout."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from tests.toys import Toy, assert_same, env_of, on, replicated
from weft import Layout
from weft.errors import WeftError
from weft.metrics import Mean
from weft.report.update import Update
from weft.runtime import driver
from weft.runtime.driver import Diverged, Plan, Result, _pass_length, train_in_memory


def step(env, s):
    x = on("env", lambda x: jnp.mod(x * 2 + 1, 31))(s["x"])
    n = on("learn", lambda n: n + 1)(s["n"])
    return {"x": x, "n": n}, {"n": Mean.of(n), "x": Mean.of(x)}


def algo(num_envs: int = 4) -> Toy:
    return Toy(
        num_envs=num_envs,
        start=lambda env, key: {"x": jax.random.randint(key, (env.num_envs,), 0, 31), "n": jnp.float32(0)},
        loop=step,
    )


@pytest.mark.parametrize(
    "layout", ["fused", replicated(env=1, learn=1), replicated(env=2, learn=1)], ids=["fused", "two", "x2"]
)
@pytest.mark.parametrize(("steps", "iterations"), [(1, 1), (4, 1), (5, 2), (600, 150)])
def test_a_run_has_whole_iterations_and_reports_each_once(layout, steps: int, iterations: int) -> None:
    updates: list[Update] = []
    result = train_in_memory(algo(), env_of, layout=layout, steps=steps, seed=3, observers=[updates.append])
    assert (result.iterations, result.steps) == (iterations, 4 * iterations)
    assert float(result.state["n"]) == iterations
    reported = [number for update in updates for number in (update.metrics["n"][0] / update.metrics["n"][1]).tolist()]
    assert reported == [float(i) for i in range(1, iterations + 1)]
    assert updates[-1].iteration == iterations
    state = Plan.of(algo(), env_of, None).init(3)
    plain_step = jax.jit(lambda state: step(None, state)[0])
    for _ in range(iterations):
        state = plain_step(state)
    assert_same(result.state, state)


@pytest.mark.parametrize("iterations", [1, 7, 64, 97, 128, 1000, 1009, 5000, 1_000_003])
def test_a_pass_is_neither_too_short_nor_too_long(iterations: int) -> None:
    length = _pass_length(iterations)
    assert 1 <= length <= min(128, max(4, iterations // 16))
    if iterations % 64 == 0:
        assert iterations % length == 0


def test_invalid_settings_are_errors() -> None:
    with pytest.raises(WeftError, match="steps=0: give at least 1"):
        train_in_memory(algo(), env_of, steps=0)
    with pytest.raises(WeftError, match="unknown engine 'locl': did you mean 'local'"):
        train_in_memory(algo(), env_of, engine="locl")
    with pytest.raises(WeftError, match="num_envs=4 cannot be divided evenly over 3"):
        train_in_memory(algo(), env_of, layout=replicated(env=3, learn=1), steps=10)


def test_system_reports_are_rare_and_the_last_covers_the_whole_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def system_updates(layout: Layout | str) -> tuple[list[Update], Result]:
        updates: list[Update] = []
        result = train_in_memory(algo(), env_of, layout=layout, steps=80, observers=[updates.append])
        return updates, result

    monkeypatch.setattr(driver, "SYSTEM_REPORT_SECONDS", 1000.0)
    updates, result = system_updates(replicated(env=2, learn=1))
    assert [update.system is not None for update in updates] == [False] * 19 + [True]
    last = updates[-1]
    assert last.system is not None and last.total is not None and result.system is last.total
    assert [share.role for share in last.total.roles] == ["env", "learn"]
    assert result.lag is None
    monkeypatch.setattr(driver, "SYSTEM_REPORT_SECONDS", 0.0)
    updates, _ = system_updates(replicated(env=2, learn=1))
    assert all(update.system for update in updates)
    assert [update.total is None for update in updates] == [True] * 19 + [False]
    for layout in ("fused", replicated(env=1, learn=1)):
        updates, result = system_updates(layout)
        assert (result.system is None) == (layout == "fused") == all(update.system is None for update in updates)


class States:
    """Keeps every state that it receives."""

    def __init__(self, state_every: int):
        self.state_every = state_every
        self.received: list[tuple[int, float]] = []

    def receive_state(self, steps: int, state) -> None:
        self.received.append((steps, float(state["n"])))


@pytest.mark.parametrize("layout", ["fused", replicated(env=2, learn=1)], ids=["fused", "x2"])
def test_state_observers_get_the_state_at_their_own_steps_and_at_the_end(layout) -> None:
    observers = [States(state_every) for state_every in (8, 10, 1000)]
    train_in_memory(algo(), env_of, layout=layout, steps=40, state_observers=observers)
    by_observer = [observer.received for observer in observers]
    assert by_observer == [
        [(steps, steps / 4) for steps in due] for due in ([8, 16, 24, 32, 40], [12, 20, 32, 40], [40])
    ]


def test_the_seed_determines_the_initial_state() -> None:
    first, second, other = (Plan.of(algo(), env_of, None).init(seed) for seed in (1, 1, 2))
    assert_same(first, second)
    assert first["x"].tolist() != other["x"].tolist()


def test_a_run_without_metrics_counts_its_iterations() -> None:
    updates: list[Update] = []
    silent = Toy(start=algo().start, loop=lambda env, s: (step(env, s)[0], {}))
    train_in_memory(silent, env_of, steps=600, observers=[updates.append])
    assert len(updates) < 150, "a pass has several iterations"
    assert (updates[-1].iteration, updates[-1].steps) == (150, 600)


def test_the_error_of_a_nan_names_the_metric_or_leaf() -> None:
    def loop(env, s):
        n = on("env", lambda n: n + 1)(s["n"])
        bad = jnp.where(n >= 7, jnp.nan, n)
        return {"n": n, "bad": bad}, {"loss": Mean.of(bad)} if loud else {}

    toy = Toy(start=lambda env, key: {"n": jnp.float32(0), "bad": jnp.float32(0)}, loop=loop)
    loud = True
    with pytest.raises(Diverged, match=r"loss is NaN in iteration 7 \(step 28\)"):
        train_in_memory(toy, env_of, steps=600)
    loud = False
    with pytest.raises(Diverged, match=r"state\['bad'\] is NaN at the end"):
        train_in_memory(toy, env_of, steps=600)
    assert train_in_memory(toy, env_of, steps=24).iterations == 6


@dataclasses.dataclass(frozen=True, kw_only=True)
class Warming(Toy):
    """A toy with a warm-up that does not learn."""

    warming: int = 3

    @property
    def warm_up_iterations(self) -> int:
        return self.warming

    def warm_up(self, env, state):
        return state | {"x": on("env", lambda x: jnp.mod(x + 1, 31))(state["x"])}, {"x": Mean.of(state["x"])}


@pytest.mark.parametrize("layout", ["fused", replicated(env=1, learn=1), replicated(env=2, learn=1)])
@pytest.mark.parametrize(("warming", "iterations"), [(0, 5), (3, 5), (5, 5), (9, 5), (70, 150)])
def test_the_warm_up_comes_first(layout, warming: int, iterations: int) -> None:
    whole = algo()
    warm = Warming(num_envs=4, start=whole.start, loop=whole.loop, warming=warming)
    updates: list[Update] = []
    result = train_in_memory(warm, env_of, layout=layout, steps=4 * iterations, seed=3, observers=[updates.append])
    assert (result.iterations, result.steps) == (iterations, 4 * iterations)
    first = min(warming, iterations)
    assert float(result.state["n"]) == iterations - first
    state = Plan.of(whole, env_of, None).init(3)
    for number in range(iterations):
        state = warm.warm_up(None, state)[0] if number < first else step(None, state)[0]
    assert_same(result.state, state)
    assert sum(len(update.metrics["x"][0]) for update in updates) == iterations
    assert sum(len(update.metrics["n"][0]) for update in updates if "n" in update.metrics) == iterations - first


def test_a_warm_up_with_another_number_of_steps_is_an_error() -> None:
    whole = algo()

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Twice(Warming):
        def warm_up(self, env, state):
            return super().warm_up(env, super().warm_up(env, state)[0])

    with pytest.raises(
        WeftError, match="one iteration of Twice.warm_up makes 8 environment steps, but one of Twice.step makes 4"
    ):
        train_in_memory(Twice(num_envs=4, start=whole.start, loop=whole.loop), env_of, steps=100)
