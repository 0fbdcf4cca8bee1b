"""Where a run's time goes is seen from outside, and what is counted adds up."""

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

from tests.toys import Toy, copies, on, projected, start_of
from weft import Layout, Role, all_mean
from weft.host import host_call, new_token, own_objects
from weft.report.system import Edge, Share, System
from weft.runtime.batching import BatchedCompute, Batcher
from weft.runtime.channel import RunControl, Stopwatch, Stream
from weft.runtime.local import LocalEngine
from weft.runtime.meter import CounterTotals, Meter, MeterSources, describe, share

SECONDS = st.floats(0, 1e6)


def napping(seconds: float) -> Callable[[Any, Any], Any]:
    def nap(token: Any, x: Any) -> Any:
        time.sleep(seconds)
        return x

    return nap


def pair(*, act: float = 0.0, learn: float = 0.0) -> Toy:
    """Roles a and b that take so many seconds each; b's weight comes back to a."""

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


def lanes(count: int, take: int = 1) -> Layout:
    return Layout(Role("a", ("a",), replicas=count), Role("b", ("b", "*"), take=take), registers=[("b", "a")])


def metered(algo: Toy, layout: Layout, times: int) -> tuple[list[System], System, list[Any], MeterSources]:
    """The readings of a run after each of its rows, the one over all, its metrics, and what counted."""
    meter, systems, seen = Meter(), [], []

    def watch(metrics: Any, state: Any) -> None:
        seen.append(metrics)
        systems.append(meter.read())

    with own_objects():
        LocalEngine(projected(algo, layout), limit=20.0).run(start_of(algo), times, watch, meter=meter)
    assert meter.parts is not None
    return [recent for recent, _ in systems], systems[-1][1], seen, meter.parts


def edge(system: System, source: str, dest: str, kind: str) -> Edge:
    (found,) = [e for e in system.edges if (e.source, e.dest, e.kind) == (source, dest, kind)]
    return found


def shares(system: System) -> dict[str, Share]:
    return {share.role: share for share in system.roles}


@given(st.floats(1e-6, 1e6), SECONDS, st.lists(st.tuples(st.sampled_from("ab"), SECONDS, SECONDS), max_size=4))
def test_shares_add_up_to_one_whatever_the_clocks_say(life: float, sending: float, waits: list[Any]) -> None:
    edges = [Edge("a", dest, "stream", sender_waits=out, receiver_waits=into) for dest, out, into in waits]
    found = share("a", life, sending, edges)
    parts = (found.computing, found.waiting, found.sending)
    assert sum(parts) == pytest.approx(1) and all(part >= -1e-9 for part in parts)


def test_a_clock_counts_the_stay_that_goes_on() -> None:
    clock = Stopwatch("a[0]")
    assert clock.read(time.perf_counter()) == 0
    clock.start()
    began = time.perf_counter()
    clock.start()
    assert clock.read(began + 3) == pytest.approx(3, abs=0.1)
    clock.stop()
    spent = clock.read(began + 3)
    clock.stop()
    assert spent == clock.read(began + 30) < 1
    clock.start()
    assert clock.read(began - 5) == spent, "a moment before it began"


def test_a_wait_that_goes_on_is_seen() -> None:
    wait = RunControl(5.0)
    stream = Stream(wait, "a[0]", "b[0]", "x")
    thread = threading.Thread(target=stream.get, daemon=True)
    thread.start()
    time.sleep(0.05)
    waited = stream.starved.read(time.perf_counter())
    stream.put(1)
    thread.join(5)
    assert 0.01 < waited <= stream.starved.read(time.perf_counter())


@pytest.mark.parametrize("slow", ["a", "b"])
@pytest.mark.parametrize("layout", [copies(a=2, b=1), lanes(2)], ids=["in step", "lanes"])
def test_the_role_that_sleeps_is_the_bottleneck_and_the_other_waits(layout: Layout, slow: str) -> None:
    _, total, _, _ = metered(pair(**{"act" if slow == "a" else "learn": 0.02}), layout, 12)
    found = shares(total)
    assert set(found) == {"a", "b"}
    assert total.bottleneck is found[slow]
    assert found[slow].computing > 0.5
    assert found["b" if slow == "a" else "a"].waiting > 0.3
    for role in found.values():
        assert role.computing + role.waiting + role.sending == pytest.approx(1)


def test_waiting_is_where_it_happens() -> None:
    _, total, _, parts = metered(pair(act=0.02), copies(a=1, b=1), 12)
    life = sum(strand.life.read(0.0) for strand in parts.strands if strand.program.role == "b")
    at_the_stream = edge(total, "a", "b", "stream").receiver_waits
    assert at_the_stream > 0.1
    assert shares(total)["b"].waiting * life == pytest.approx(
        at_the_stream + edge(total, "b", "run", "report").sender_waits, rel=1e-6
    )


@pytest.mark.parametrize(("count", "take"), [(1, 1), (4, 1), (4, 2), (4, 4)])
def test_every_piece_of_work_has_a_lag(count: int, take: int) -> None:
    times = 9
    recent, total, seen, parts = metered(pair(), lanes(count, take), times)
    assert total.lag is not None
    assert sum(total.lag.counts.values()) == count * times
    assert sum(sum(system.lag.counts.values()) for system in recent if system.lag) == count * times
    assert [float(row["lag"].count[0]) for row in seen] == [count] * times
    totals = sum(float(row["lag"].total[0]) for row in seen)
    assert totals == sum(lag * number for lag, number in total.lag.counts.items())
    assert max(float(row["lag_max"].total[0]) for row in seen) == total.lag.max
    assert edge(total, "a", "b", "lanes").messages * total.seconds == pytest.approx(count * times)
    if count == take:
        assert all(sum(lane.taken for lane in lanes.lanes) == count * times for lanes in parts.lanes)


def test_in_step_nothing_is_late() -> None:
    _, total, seen, _ = metered(pair(), copies(a=2, b=1), 3)
    assert total.lag is None and all(row == {} for row in seen)


@pytest.mark.parametrize("layout", [copies(a=2, b=1), lanes(2)], ids=["in step", "lanes"])
def test_bytes_are_those_of_the_arrays_that_crossed(layout: Layout) -> None:
    times = 7
    recent, total, _, parts = metered(pair(), layout, times)
    found = edge(total, "a", "b", "stream")
    assert found.messages * total.seconds == pytest.approx(2 * times)
    # Each of two replicas has two of four environments.
    assert found.bytes * total.seconds == pytest.approx(2 * times * 2 * 4)
    assert found.depth == 0 and 1 <= found.most <= 2 * len(parts.streams)
    back = edge(total, "b", "a", "register" if layout.lanes else "stream")
    assert back.bytes * total.seconds == pytest.approx(2 * times * 4)
    for way in ("messages", "bytes"):
        added = sum(getattr(edge(system, "a", "b", "stream"), way) * system.seconds for system in recent)
        assert added == pytest.approx(getattr(found, way) * total.seconds)


def test_a_strand_that_has_ended_does_not_wait() -> None:
    """Whoever ends early has lived less; it has not waited more."""
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


def test_replicas_wait_for_each_other_where_they_meet() -> None:
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


def test_who_waits_for_more_calls_waits_and_who_is_in_the_batch_computes() -> None:
    """Of two replicas whose calls are one, only one thread works, but both compute."""

    def slow(common: Any, own: Any) -> list[list[Any]]:
        time.sleep(0.4)
        return [[inputs[0]] for inputs in own]

    run = BatchedCompute((False,), {1: slow, 2: slow})
    patient, clocks = Batcher(RunControl(20.0), run, 2, 5.0), [Stopwatch("a[0]"), Stopwatch("a[1]")]
    threads = [threading.Thread(target=patient, args=(0, clock, [1]), daemon=True) for clock in clocks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert patient.sizes == {2: 1}
    assert all(clock.read(time.perf_counter()) < 0.4 for clock in clocks)
    alone, began = Stopwatch("a[2]"), time.perf_counter()
    Batcher(RunControl(20.0), run, 2, 0.05)(0, alone, [1])
    assert 0.04 < alone.read(time.perf_counter()) <= time.perf_counter() - began - 0.4


def test_batches_are_counted_by_role() -> None:
    counts = CounterTotals()
    counts.batches.update({("a", 2): 3, ("a", 1): 1, ("b", 4): 2})
    assert describe(counts, 1.0).batches == {"a": {2: 3, 1: 1}, "b": {4: 2}}


def test_runs_one_after_the_other_add_up() -> None:
    algo, layout, meter = pair(), lanes(2), Meter()
    assert meter.trivial
    with own_objects():
        built = LocalEngine(projected(algo, layout), limit=20.0)
        state = built.run(start_of(algo), 3, meter=meter)
        meter.read()
        built.run(state, 4, meter=meter)
    recent, total = meter.read()
    assert not meter.trivial
    assert recent.lag is not None and sum(recent.lag.counts.values()) == 8
    assert total.lag is not None and sum(total.lag.counts.values()) == 14


def test_one_strand_is_trivial() -> None:
    meter = Meter()
    algo = Toy(start=lambda env, key: {"x": np.zeros(4)}, loop=lambda env, s: ({"x": on("a")(s["x"])}, {}))
    LocalEngine(projected(algo, copies(a=1))).run(start_of(algo), 2, meter=meter)
    assert meter.trivial
