"""The meter divides the time of each role, and its counters add up."""

import threading
import time
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

from tests.toys import Toy, on, projected, replicated, start_of
from weft import Layout, Role, all_mean
from weft.host import host_call, new_token, own_objects
from weft.report.system import EdgeTraffic, RoleTime, System
from weft.runtime.batching import BatchedCompute, Batcher
from weft.runtime.channel import RunControl, Stopwatch, Stream
from weft.runtime.local import LocalEngine
from weft.runtime.meter import CounterTotals, Instruments, Meter, system_report, time_share

SECONDS = st.floats(0, 1e6)


def napping(seconds: float) -> Callable[[Any, Any], Any]:
    def nap(token: Any, x: Any) -> Any:
        time.sleep(seconds)
        return x

    return nap


def pair(*, act: float = 0.0, learn: float = 0.0) -> Toy:
    """Roles a and b whose host calls take the given seconds. The weight of b goes back to a."""

    def sleeping(name: str, seconds: float) -> Callable[..., Any]:
        def call(token: Any, x: Any, w: Any) -> Any:
            y = x + w
            return host_call(napping(seconds), jax.ShapeDtypeStruct(y.shape, y.dtype), token, y, name=name)

        return on(name, call)

    def loop(env: Any, s: Any) -> Any:
        t, x = sleeping("a", act)(s["t"], s["x"], s["w"])
        u, w = sleeping("b", learn)(s["u"], s["w"], jnp.mean(x))
        return {"t": t, "u": u, "x": x, "w": jnp.mod(w, 31)}, {}

    def start(env: Any, key: Any) -> Any:
        zero = jnp.zeros(env.num_envs)
        return {"t": new_token(env.num_envs), "u": new_token(1), "x": zero, "w": jnp.zeros(1)}

    return Toy(start=start, loop=loop)


def lane_layout(count: int, take: int = 1) -> Layout:
    return Layout(Role("a", ("a",), replicas=count), Role("b", ("b", "*"), take=take), registers=[("b", "a")])


def metered(algo: Toy, layout: Layout, passes: int) -> tuple[list[System], System, list[Any], Instruments]:
    """The reading after each pass, the reading over the whole run, the metrics, and the instruments."""
    meter, systems, metrics = Meter(), [], []

    def on_pass(pass_metrics: Any, state: Any) -> None:
        metrics.append(pass_metrics)
        systems.append(meter.read())

    with own_objects():
        LocalEngine(projected(algo, layout), stuck_after=20.0).run(start_of(algo), passes, on_pass, meter=meter)
    assert meter.instruments is not None
    return [recent for recent, _ in systems], systems[-1][1], metrics, meter.instruments


def edge(system: System, source: str, dest: str, kind: str) -> EdgeTraffic:
    (found,) = [e for e in system.edges if (e.source, e.dest, e.kind) == (source, dest, kind)]
    return found


def shares(system: System) -> dict[str, RoleTime]:
    return {share.role: share for share in system.roles}


@given(st.floats(1e-6, 1e6), SECONDS, st.lists(st.tuples(st.sampled_from("ab"), SECONDS, SECONDS), max_size=4))
def test_time_shares_add_up_to_one_for_any_counters(lifetime: float, sending: float, waits: list[Any]) -> None:
    edges = [EdgeTraffic("a", dest, "stream", sender_waits=out, receiver_waits=into) for dest, out, into in waits]
    share = time_share("a", lifetime, sending, edges)
    fractions = (share.computing, share.waiting, share.sending)
    assert sum(fractions) == pytest.approx(1) and all(fraction >= -1e-9 for fraction in fractions)


def test_a_stopwatch_includes_the_current_interval() -> None:
    stopwatch = Stopwatch("a[0]")
    assert stopwatch.read(time.perf_counter()) == 0
    stopwatch.start()
    started = time.perf_counter()
    stopwatch.start()
    assert stopwatch.read(started + 3) == pytest.approx(3, abs=0.1)
    stopwatch.stop()
    seconds = stopwatch.read(started + 3)
    stopwatch.stop()
    assert seconds == stopwatch.read(started + 30) < 1
    stopwatch.start()
    assert stopwatch.read(started - 5) == seconds, "a time before the interval began"


def test_a_wait_that_has_not_ended_is_measured() -> None:
    stream = Stream(RunControl(5.0), "a[0]", "b[0]", "x")
    thread = threading.Thread(target=stream.get, daemon=True)
    thread.start()
    time.sleep(0.05)
    waited = stream.receive_wait.read(time.perf_counter())
    stream.put(1)
    thread.join(5)
    assert 0.01 < waited <= stream.receive_wait.read(time.perf_counter())


@pytest.mark.parametrize("slow", ["a", "b"])
@pytest.mark.parametrize("layout", [replicated(a=2, b=1), lane_layout(2)], ids=["synchronous", "lanes"])
def test_the_role_that_sleeps_is_the_bottleneck_and_the_other_waits(layout: Layout, slow: str) -> None:
    _, total, _, _ = metered(pair(**{"act" if slow == "a" else "learn": 0.02}), layout, 12)
    found = shares(total)
    assert set(found) == {"a", "b"}
    assert total.bottleneck is found[slow]
    assert found[slow].computing > 0.5
    assert found["b" if slow == "a" else "a"].waiting > 0.3
    for role in found.values():
        assert role.computing + role.waiting + role.sending == pytest.approx(1)


def test_waiting_counts_on_the_edge_where_it_happens() -> None:
    _, total, _, instruments = metered(pair(act=0.02), replicated(a=1, b=1), 12)
    executors = [executor for executor in instruments.executors if executor.program.role == "b"]
    lifetime = sum(executor.lifetime.read(0.0) for executor in executors)
    stream_waits = edge(total, "a", "b", "stream").receiver_waits
    assert stream_waits > 0.1
    assert shares(total)["b"].waiting * lifetime == pytest.approx(
        stream_waits + edge(total, "b", "run", "report").sender_waits, rel=1e-6
    )


@pytest.mark.parametrize(("count", "take"), [(1, 1), (4, 1), (4, 2), (4, 4)])
def test_every_lane_iteration_has_a_lag(count: int, take: int) -> None:
    times = 9
    recent, total, metrics, instruments = metered(pair(), lane_layout(count, take), times)
    assert total.lag is not None
    assert sum(total.lag.counts.values()) == count * times
    assert sum(sum(system.lag.counts.values()) for system in recent if system.lag) == count * times
    assert [float(each["lag"].count[0]) for each in metrics] == [count] * times
    totals = sum(float(each["lag"].total[0]) for each in metrics)
    assert totals == sum(lag * number for lag, number in total.lag.counts.items())
    assert max(float(each["lag_max"].total[0]) for each in metrics) == total.lag.max
    assert edge(total, "a", "b", "lanes").messages * total.seconds == pytest.approx(count * times)
    if count == take:
        (admission,) = instruments.admissions
        assert sum(lane.consumed for lane in admission.lanes) == count * times


def test_a_synchronous_run_has_no_lag() -> None:
    _, total, metrics, _ = metered(pair(), replicated(a=2, b=1), 3)
    assert total.lag is None and all(each == {} for each in metrics)


@pytest.mark.parametrize("layout", [replicated(a=2, b=1), lane_layout(2)], ids=["synchronous", "lanes"])
def test_edges_count_the_bytes_of_the_arrays_they_carry(layout: Layout) -> None:
    times = 7
    recent, total, _, instruments = metered(pair(), layout, times)
    found = edge(total, "a", "b", "stream")
    assert found.messages * total.seconds == pytest.approx(2 * times)
    # Each of the two replicas has two of the four environments.
    assert found.bytes * total.seconds == pytest.approx(2 * times * 2 * 4)
    assert found.depth == 0 and 1 <= found.depth_max <= 2 * len(instruments.streams)
    back = edge(total, "b", "a", "register" if layout.lanes else "stream")
    assert back.bytes * total.seconds == pytest.approx(2 * times * 4)
    for name in ("messages", "bytes"):
        added = sum(getattr(edge(system, "a", "b", "stream"), name) * system.seconds for system in recent)
        assert added == pytest.approx(getattr(found, name) * total.seconds)


def test_an_executor_that_has_ended_does_not_wait() -> None:
    algo = Toy(
        start=lambda env, key: {"x": jnp.zeros(env.num_envs), "t": new_token(1)},
        loop=lambda env, s: ({"x": on("a", lambda x: x + 1)(s["x"]), "t": s["t"]}, {}),
    )
    meter = Meter()
    with own_objects():
        LocalEngine(projected(algo, Layout(Role("a", ("*",), replicas=2)))).run(start_of(algo), 3, meter=meter)
    first = shares(meter.read()[1])["a"]
    time.sleep(0.05)
    recent, total = meter.read()
    assert recent.roles == () and shares(total)["a"] == first


def test_waiting_for_other_replicas_counts_at_the_merge() -> None:
    algo = Toy(
        start=lambda env, key: {"x": jnp.zeros(env.num_envs), "m": jnp.float32(0)},
        loop=lambda env, s: ({"x": s["x"] + 1, "m": all_mean(s["x"].sum())}, {}),
    )
    built = LocalEngine(projected(algo, Layout(Role("a", ("*",), replicas=2))))
    slowed = {
        run: lambda *args, call=call: (time.sleep(0.01), call(*args))[1]
        for run, call in built.executables["a", 1].items()
    }
    built.executables["a", 1] = slowed
    meter = Meter()
    built.run(start_of(algo), 10, meter=meter)
    total = meter.read()[1]
    assert edge(total, "a", "a", "merge").receiver_waits > 0.05
    assert shares(total)["a"].waiting > 0.2 and total.bottleneck is None


def test_replicas_wait_before_a_batch_and_compute_during_it() -> None:
    """The batch executes on one thread, but counts as computing for all of its replicas."""

    def slow(common: Any, own: Any) -> list[list[Any]]:
        time.sleep(0.4)
        return [[inputs[0]] for inputs in own]

    compute = BatchedCompute((False,), {1: slow, 2: slow})
    batcher, stopwatches = Batcher(RunControl(20.0), compute, 2, 5.0), [Stopwatch("a[0]"), Stopwatch("a[1]")]
    threads = [threading.Thread(target=batcher, args=(0, stopwatch, [1]), daemon=True) for stopwatch in stopwatches]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert batcher.sizes == {2: 1}
    assert all(stopwatch.read(time.perf_counter()) < 0.4 for stopwatch in stopwatches)
    alone, started = Stopwatch("a[2]"), time.perf_counter()
    Batcher(RunControl(20.0), compute, 2, 0.05)(0, alone, [1])
    assert 0.04 < alone.read(time.perf_counter()) <= time.perf_counter() - started - 0.4


def test_batches_are_counted_by_role() -> None:
    totals = CounterTotals()
    totals.batches.update({("a", 2): 3, ("a", 1): 1, ("b", 4): 2})
    assert system_report(totals, 1.0).batches == {"a": {2: 3, 1: 1}, "b": {4: 2}}


def test_the_counters_of_several_engine_runs_add_up() -> None:
    algo, layout, meter = pair(), lane_layout(2), Meter()
    assert meter.trivial
    with own_objects():
        built = LocalEngine(projected(algo, layout), stuck_after=20.0)
        state = built.run(start_of(algo), 3, meter=meter)
        meter.read()
        built.run(state, 4, meter=meter)
    recent, total = meter.read()
    assert not meter.trivial
    assert recent.lag is not None and sum(recent.lag.counts.values()) == 8
    assert total.lag is not None and sum(total.lag.counts.values()) == 14


def test_a_run_with_one_executor_is_trivial() -> None:
    meter = Meter()
    algo = Toy(start=lambda env, key: {"x": np.zeros(4)}, loop=lambda env, s: ({"x": on("a")(s["x"])}, {}))
    LocalEngine(projected(algo, replicated(a=1))).run(start_of(algo), 2, meter=meter)
    assert meter.trivial
