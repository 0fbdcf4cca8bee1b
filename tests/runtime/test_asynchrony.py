"""Runs with lanes and registers: each iteration is consumed once within max_lag, and runs end cleanly."""

import _thread
import threading
import time
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.toys import assert_same, on, plain, projected, replicated, start_of, toy
from weft import Layout, Role, all_mean, all_sum
from weft.errors import WeftError
from weft.host import host_call, new_token
from weft.metrics import Mean
from weft.runtime.channel import Stuck
from weft.runtime.devices import Devices
from weft.runtime.local import LocalEngine, RoleFailed, ThreadedRun

FOREVER = 10**6


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


def lanes(actors: int = 4, take: int = 1, max_lag: int | None = None, learners: int = 1, **options: Any) -> Layout:
    return Layout(
        Role("actor", ("act",), replicas=actors, **options),
        Role("learner", ("learn",), take=take, replicas=learners),
        registers=[("learner", "actor")],
        max_lag=max_lag,
    )


def counting(act: Any = lambda net, rows: rows + 1 + 0 * net, merge: Any = all_sum, num_envs: int = 4) -> Any:
    """Every environment counts its steps; the net is the sum of all counts that the learner has received."""

    def start(env: Any) -> Any:
        return {"net": jnp.float32(0), "rows": jnp.zeros(env.num_envs), "updates": jnp.float32(0)}

    def loop(s: Any) -> Any:
        rows = on("act", act)(s["net"], s["rows"])
        net, updates = on("learn", lambda net, n, rows: (net + merge(rows.sum()), n + 1))(s["net"], s["updates"], rows)
        return {"net": net, "rows": rows, "updates": updates}, {"rows": Mean.of(rows)}

    return toy(start, loop, num_envs=num_envs)


def triangle(rows: Any) -> float:
    """The sum of all counts up to the final ones, over all environments."""
    rows = np.asarray(rows)
    return float((rows * (rows + 1) / 2).sum())


@pytest.mark.parametrize(
    ("layout", "updates"),
    [
        (lanes(4, 1), 4),
        (lanes(4, 2), 2),
        (lanes(4, 4), 1),
        (lanes(4, 1, max_lag=0), 4),
        (lanes(4, 2, max_lag=1), 2),
        (lanes(4, 1, learners=2), 2),
        (lanes(4, 2, learners=2, max_lag=3), 1),
        (lanes(2, 1), 2),
        (lanes(1, 1), 1),
    ],
    ids=lambda value: str(value),
)
def test_every_lane_iteration_is_consumed_exactly_once(layout: Layout, updates: int) -> None:
    algo, times, counts = counting(), 25, []
    engine = LocalEngine(projected(algo, layout), stuck_after=20.0)
    end = engine.run(start_of(algo), times, lambda metrics, state: counts.append(metrics["rows"]))
    assert end["rows"].sum() == 4 * times
    assert end["net"] == triangle(end["rows"])
    assert end["updates"] == updates * times
    assert len(counts) == times and sum(each.count[0] for each in counts) == 4 * times
    assert sum(each.total[0] for each in counts) == triangle(end["rows"])


@pytest.mark.parametrize("max_lag", [0, 1, 2])
@pytest.mark.parametrize(("actors", "take"), [(4, 1), (4, 2), (4, 4), (1, 1)])
def test_the_lag_of_every_update_is_within_max_lag(actors: int, take: int, max_lag: int) -> None:
    def start(env: Any) -> Any:
        return {"net": jnp.int32(0), "rows": jnp.zeros(env.num_envs, jnp.int32), "lag": jnp.int32(0)}

    def loop(s: Any) -> Any:
        rows = on("act", lambda net, rows: rows * 0 + net)(s["net"], s["rows"])

        def learn(net: Any, lag: Any, rows: Any) -> Any:
            return net + 1, jnp.maximum(lag, net - rows.min())

        net, lag = on("learn", learn)(s["net"], s["lag"], rows)
        return {"net": net, "rows": rows, "lag": lag}

    algo = toy(start, loop)
    end = LocalEngine(projected(algo, lanes(actors, take, max_lag)), stuck_after=20.0).run(start_of(algo), 40)
    assert end["net"] == 40 * actors // take
    assert end["lag"] <= max_lag


@pytest.mark.parametrize("actors", [1, 2, 4])
def test_max_lag_of_zero_with_all_lanes_consumed_matches_the_plain_loop(actors: int) -> None:
    algo = counting(lambda net, rows: jnp.mod(rows + net, 7))
    end = LocalEngine(projected(algo, lanes(actors, actors, max_lag=0)), stuck_after=20.0).run(start_of(algo), 10)
    assert_same(end, plain(algo, 10)[0])


@pytest.mark.parametrize("readers", [("actor", "world"), ("world", "actor")])
def test_two_roles_may_read_different_leaves_of_one_writer(readers: tuple[str, str]) -> None:
    def start(env: Any) -> Any:
        return {"net": jnp.float32(1), "drift": jnp.float32(1), "rows": jnp.zeros(env.num_envs)}

    def loop(s: Any) -> Any:
        moved = on("env", lambda drift, rows: jnp.mod(rows + drift, 7))(s["drift"], s["rows"])
        rows = on("act", lambda net, rows: jnp.mod(rows + net, 5))(s["net"], moved)
        net, drift = on("learn", lambda net, drift, rows: (net + all_sum(rows.sum()), drift + 1))(
            s["net"], s["drift"], rows
        )
        return {"net": net, "drift": drift, "rows": rows}

    layout = Layout(
        Role("actor", ("act",), replicas=2),
        Role("world", ("env",), replicas=2),
        Role("learner", ("learn",), take=2),
        registers=[("learner", reader) for reader in readers],
        max_lag=0,
    )
    algo = toy(start, loop)
    end = LocalEngine(projected(algo, layout), stuck_after=20.0).run(start_of(algo), 10)
    assert_same(end, plain(algo, 10)[0])


@pytest.mark.parametrize("take", [1, 2, 4])
def test_values_merged_outside_fragments_are_merged_over_the_lanes_that_the_learner_consumes(take: int) -> None:
    def start(env: Any) -> Any:
        return {"net": jnp.float32(0), "rows": jnp.zeros(env.num_envs)}

    def loop(s: Any) -> Any:
        rows, share = on("act", lambda net, rows: (rows + 1 + 0 * net, rows.sum() + rows.size))(s["net"], s["rows"])
        return {"net": on("learn", lambda net, total: net + total)(s["net"], all_sum(share)), "rows": rows}

    algo = toy(start, loop)
    end = LocalEngine(projected(algo, lanes(4, take)), stuck_after=20.0).run(start_of(algo), 10)
    assert end["rows"].sum() == 4 * 10
    assert end["net"] == triangle(end["rows"])


def test_a_slow_lane_executes_fewer_iterations() -> None:
    algo = slow(lambda names: 0.02 if 0 in names else 0.001)
    end = LocalEngine(projected(algo, lanes(4, 1)), stuck_after=20.0).run(start_of(algo), 50)
    assert end["rows"].sum() == 200 and end["rows"][0] < end["rows"][1:].min()


def slow(seconds: Any, work: Any = lambda: None) -> Any:
    """A loop with host code in every lane. `seconds` gets the names of the environments of the lane."""

    def start(env: Any) -> Any:
        names = jnp.arange(env.num_envs, dtype=jnp.int32)
        return {
            "net": jnp.float32(0),
            "names": names,
            "rows": jnp.zeros(env.num_envs),
            "token": new_token(env.num_envs),
        }

    def loop(s: Any) -> Any:
        def step(token: Any, names: Any, rows: Any, net: Any) -> Any:
            work()
            time.sleep(seconds(names.tolist()))
            return rows + 1

        token, rows = host_call(step, jax.typeof(s["rows"]), s["token"], s["names"], s["rows"], s["net"], name="act")
        net = on("learn", lambda net, rows: net + rows.sum())(s["net"], rows)
        return {"net": net, "names": s["names"], "rows": rows, "token": token}

    return toy(start, loop)


def test_an_error_in_a_lane_ends_the_run_at_once_and_names_the_replica() -> None:
    calls = iter(range(FOREVER))

    def fail() -> None:
        if next(calls) == 30:
            raise ValueError("bad luck")

    began = time.monotonic()
    with pytest.raises(RoleFailed, match=r"role actor\[\d\] failed: ValueError: bad luck"):
        algo = slow(lambda names: 0.001, fail)
        LocalEngine(projected(algo, lanes(4, 2))).run(start_of(algo), FOREVER)
    assert time.monotonic() - began < 10


def test_an_interrupt_ends_the_run_within_a_second() -> None:
    algo = slow(lambda names: 0.001)
    engine, state = LocalEngine(projected(algo, lanes(4, 1, max_lag=1))), start_of(algo)
    stopped: list[float] = []

    def stop(metrics: Any, state: Any) -> None:
        if not stopped:
            stopped.append(time.monotonic())
            _thread.interrupt_main()

    with pytest.raises(KeyboardInterrupt):
        engine.run(state, FOREVER, stop)
    assert time.monotonic() - stopped[0] < 1


def test_the_error_of_a_waiting_consumer_names_the_lane_that_is_not_ready() -> None:
    algo = slow(lambda names: 2.0 if 3 in names else 0.0)
    with pytest.raises(RoleFailed, match=r"learner\[0\] .*for 4 of its 4 lanes \(not ready: actor\[3\]\)"):
        LocalEngine(projected(algo, lanes(4, 4)), stuck_after=0.3).run(start_of(algo), FOREVER)


def test_the_callback_gets_states_during_the_run_and_at_its_end() -> None:
    algo, received = slow(lambda names: 0.002), []
    engine = LocalEngine(projected(algo, lanes(4, 1)), stuck_after=20.0)
    end = engine.run(start_of(algo), 40, lambda _, state: received.append(state), lambda number: number % 10 == 0)
    states = [state for state in received if state is not None]
    assert len(states) >= 3 and received[-1] is not None
    totals = [float(state["rows"].sum()) for state in states]
    assert totals == sorted(totals) and totals[0] >= 40
    assert_same(states[-1], end)


def test_a_register_is_copied_to_each_device_once_per_version(monkeypatch: pytest.MonkeyPatch) -> None:
    copies: list[Any] = []
    layout = lanes(4, 4, max_lag=0, on=("1", "2"))
    engine = LocalEngine(projected(counting(), layout))
    original = Devices.transfer

    def transfer(self: Devices, tree: Any) -> Any:
        if isinstance(tree, dict):
            copies.append(self.assigned)
        return original(self, tree)

    monkeypatch.setattr(Devices, "transfer", transfer)
    engine.run(start_of(counting()), 10)
    assert len(copies) == 2 * 10 and len(set(copies)) == 2


@pytest.mark.parametrize(
    "learner",
    [
        Role("learner", ("learn",), take=4, on=("3",)),
        Role("learner", ("learn",), take=4, devices=2),
        Role("learner", ("learn",), take=2, devices=2, on=("2", "3")),
        Role("learner", ("learn",), take=1, devices=2, on=("2", "3")),
    ],
    ids=str,
)
def test_learners_over_devices_consume_every_iteration_once(learner: Role) -> None:
    actor = Role("actor", ("act",), replicas=4, on=("0", "1"))
    layout = Layout(actor, learner, registers=[("learner", "actor")])
    algo = counting(num_envs=8)
    end = LocalEngine(projected(algo, layout), stuck_after=20.0).run(start_of(algo), 20)
    assert end["rows"].sum() == 8 * 20
    assert end["net"] == triangle(end["rows"])


def test_batched_calls_compute_the_same_as_single_calls() -> None:
    def start(env: Any) -> Any:
        return {"net": jnp.float32(1), "rows": jnp.zeros(env.num_envs), "sum": jnp.float32(0)}

    def loop(s: Any) -> Any:
        def tick(rows: Any, _: Any) -> Any:
            rows = on("env", lambda x: x + 1)(on("act", lambda net, x: net * x)(s["net"], rows))
            return rows, rows

        rows, all_rows = jax.lax.scan(tick, s["rows"], None, length=5)
        net, total = on("learn", lambda net, total, rows: (net * 1, total + all_sum(rows.sum())))(
            s["net"], s["sum"], all_rows
        )
        return {"net": net, "rows": rows, "sum": total}

    for batch, wait in ((4, 0.0), (2, 0.001), (3, 0.01)):
        layout = Layout(
            Role("env", ("env",), replicas=4),
            Role("inference", ("act",), replicas=4, batch=batch, wait=wait),
            Role("learner", ("learn",), take=1),
            registers=[("learner", "inference")],
        )
        algo = toy(start, loop)
        threads = ThreadedRun(
            LocalEngine(projected(algo, layout), stuck_after=20.0), 10, lambda *_: None, lambda _: False
        )
        end = threads.run(start_of(algo))
        assert end["rows"].sum() == 4 * 50
        assert end["sum"] == triangle(end["rows"])
        (batcher,) = threads.wiring.batchers.values()
        assert sum(size * count for size, count in batcher.sizes.items()) == 4 * 50
        assert max(batcher.sizes) <= batch


def test_loops_that_lanes_cannot_execute_are_errors() -> None:
    merging = counting(lambda net, rows: rows + all_mean(rows.sum()))
    with pytest.raises(WeftError, match="merges values over the 4 replicas of actor, so each lane would wait"):
        projected(merging, lanes(4, 1))
    projected(merging, lanes(4, 4))

    def rows_at_the_learner(s: Any) -> Any:
        x = on("act")(s["x"])
        return {"x": x, "y": on("learn", lambda y, x: y + x)(s["y"], x)}

    algo = toy(lambda env: {"x": jnp.zeros(env.num_envs), "y": jnp.zeros(env.num_envs)}, rows_at_the_learner)
    with pytest.raises(WeftError, match=r"state\['y'\] has a row for every environment and would be kept by learner"):
        projected(algo, lanes(4, 2))
    end = LocalEngine(projected(algo, lanes(4, 4)), stuck_after=20.0).run(start_of(algo), 3)
    assert_same(end, plain(algo, 3)[0])


def test_the_error_without_a_new_version_names_the_waiting_lane() -> None:
    engine = LocalEngine(projected(slow(lambda names: 0.0), lanes(1, 1, max_lag=0)), stuck_after=0.3)
    threads = ThreadedRun(engine, 3, lambda *_: None, lambda _: False)
    threads.wiring.admissions[0].publish = lambda value: None  # type: ignore[method-assign]
    with pytest.raises(RoleFailed, match=r"has waited 0.3 s for .*learner\[0\]") as error:
        threads.run(start_of(slow(lambda names: 0.0)))
    assert isinstance(error.value.__cause__, Stuck)


def test_a_register_that_passes_nothing_is_refused() -> None:
    layout = Layout(
        Role("actor", ("act",), replicas=2),
        Role("learner", ("learn",), take=1),
        registers=[("learner", "actor")],
        max_lag=0,
    )
    algo = toy(
        lambda env: {"net": jnp.float32(0), "rows": jnp.zeros(env.num_envs)},
        lambda s: {"rows": (x := on("act")(s["rows"])), "net": on("learn", lambda n, x: n + x.sum())(s["net"], x)},
    )
    with pytest.raises(WeftError, match="actor reads no state that learner produces; leave the register out"):
        projected(algo, layout)


def test_a_counter_of_lanes_and_of_the_learner_is_refused() -> None:
    def loop(s: Any) -> Any:
        rows = on("act", lambda net, rows, count: rows + net + count)(s["net"], s["rows"], s["count"])
        net = on("learn", lambda net, x, count: net + x.mean() / (1 + count))(s["net"], rows, s["count"])
        return {"net": net, "rows": rows, "count": s["count"] + 1}

    algo = toy(lambda env: {"net": jnp.float32(0), "rows": jnp.zeros(env.num_envs), "count": jnp.int32(0)}, loop)
    with pytest.raises(WeftError, match=r"state\['count'\] would be advanced by actor and by learner"):
        projected(algo, lanes(2, 1))
    projected(algo, replicated(act=2, learn=1))
