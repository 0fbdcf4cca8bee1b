"""The local engine ends runs at once and cleanly, and its errors name the role."""

import _thread
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

from tests.toys import assert_same, assert_unchanged, layout_of, on, plain, projected, replicated, start_of, toy
from weft import Layout, Role, all_mean, replica
from weft.errors import WeftError
from weft.metrics import Mean
from weft.runtime import local
from weft.runtime.channel import Stuck
from weft.runtime.local import LocalEngine, RoleFailed
from weft.runtime.metrics_assembler import MAX_ITERATIONS_AHEAD
from weft.runtime.wiring import compiled_merge, partners

FOREVER = 10**9


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


def pair(a: Callable[..., Any] = lambda x: x + 1, b: Callable[..., Any] = lambda x: x * 2) -> Any:
    return toy(lambda env: {"x": jnp.zeros(env.num_envs)}, lambda s: {"x": jnp.mod(on("b", b)(on("a", a)(s["x"])), 31)})


def engine(algo: Any, layout: Layout, **options: Any) -> LocalEngine:
    return LocalEngine(projected(algo, layout), **options)


def wrap_executables(built: LocalEngine, role: str, index: int, wrap: Callable[[Any], Any]) -> LocalEngine:
    """Wraps every executable of a replica."""
    built.executables[role, index] = {run: wrap(call) for run, call in built.executables[role, index].items()}
    return built


@pytest.mark.parametrize("call", [jax.pure_callback, io_callback], ids=["pure", "io"])
@pytest.mark.parametrize("where", ["a", "b"])
@pytest.mark.filterwarnings("ignore")
def test_an_error_inside_a_fragment_names_its_role_and_keeps_its_traceback(where: str, call: Any) -> None:
    def fail(x: Any) -> Any:
        raise ValueError("bad luck")

    bad = {where: lambda x: call(fail, jax.ShapeDtypeStruct(x.shape, x.dtype), x)}
    started = time.monotonic()
    with pytest.raises(RoleFailed, match=rf"role {where}\[0\] failed: .*") as error:
        engine(pair(**bad), replicated(a=1, b=1)).run(start_of(pair()), FOREVER)
    assert time.monotonic() - started < 5
    assert "bad luck" in str(error.value.__cause__)


def test_the_cause_of_a_failed_run_is_the_original_error() -> None:
    original = KeyError("mine")

    def wrap(call: Any) -> Any:
        calls = iter(range(10))

        def failing(*args: Any) -> Any:
            if next(calls) == 3:
                raise original
            return call(*args)

        return failing

    built = wrap_executables(engine(pair(), replicated(a=2, b=1)), "a", 1, wrap)
    with pytest.raises(RoleFailed, match=r"role a\[1\] failed: KeyError: 'mine'") as error:
        built.run(start_of(pair()), FOREVER)
    assert error.value.__cause__ is original
    assert "failing" in [frame.name for frame in _frames(original)]


def _frames(error: BaseException) -> list[Any]:
    return list(traceback.extract_tb(error.__traceback__))


def test_an_error_in_the_callback_ends_the_run() -> None:
    def on_pass(metrics: Any, state: Any) -> None:
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        engine(pair(), replicated(a=1, b=1)).run(start_of(pair()), FOREVER, on_pass)


@pytest.mark.parametrize(
    "layout", [replicated(a=1, b=1), replicated(a=2, b=1), layout_of(all="*")], ids=["two", "three", "one"]
)
def test_an_interrupt_ends_the_run_within_a_second(layout: Layout) -> None:
    built, state = engine(pair(), layout), start_of(pair())
    sent: list[float] = []

    def interrupt() -> None:
        sent.append(time.monotonic())
        _thread.interrupt_main()

    timer = threading.Timer(0.2, interrupt)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        built.run(state, FOREVER)
    assert time.monotonic() - sent[0] < 1.0
    timer.join()
    assert_same(built.run(state, 3), plain(pair())[0])


def test_no_thread_is_left_if_another_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    class Limited(threading.Thread):
        def start(self) -> None:
            if self.name == "b[0]":
                raise RuntimeError("can't start new thread")
            super().start()

    monkeypatch.setattr(local.threading, "Thread", Limited)
    with pytest.raises(RuntimeError, match="can't start"):
        engine(pair(), replicated(a=1, b=1)).run(start_of(pair()), FOREVER)


def test_the_error_of_a_stuck_stream_names_both_replicas_and_the_message() -> None:
    released = threading.Event()
    built = engine(pair(), replicated(a=1, b=1), stuck_after=0.1)
    wrap_executables(built, "a", 0, lambda call: lambda *args: (released.wait(0.5), call(*args))[1])
    with pytest.raises(RoleFailed, match=r"b\[0\] has waited 0.1 s for loop/a\[0\] from a\[0\]") as error:
        built.run(start_of(pair()), FOREVER)
    assert isinstance(error.value.__cause__, Stuck)


def test_a_thread_that_hangs_does_not_hide_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "SHUTDOWN_SECONDS", 0.1)
    released = threading.Event()
    built = engine(pair(), replicated(a=1, b=1), stuck_after=0.1)
    wrap_executables(built, "a", 0, lambda call: lambda *args: (released.wait(20), call(*args))[1])
    started = time.monotonic()
    with pytest.raises(RoleFailed, match=r"b\[0\] has waited"):
        built.run(start_of(pair()), FOREVER)
    assert time.monotonic() - started < 2
    released.set()
    for thread in threading.enumerate():
        if thread.name == "a[0]":
            thread.join(5)


def test_no_replica_runs_far_ahead_of_the_callback() -> None:
    # The roles exchange nothing, so only the bound on reports holds them back.
    algo = toy({"x": jnp.zeros(4), "y": jnp.zeros(4)}, lambda s: {"x": on("a")(s["x"]), "y": on("b")(s["y"])})
    built = engine(algo, replicated(a=1, b=1))
    counts = {"a": 0, "b": 0}

    def counting(role: str) -> Callable[[Any], Any]:
        def wrap(call: Any) -> Any:
            def counted(*args: Any) -> Any:
                counts[role] += 1
                return call(*args)

            return counted

        return wrap

    for role in counts:
        wrap_executables(built, role, 0, counting(role))
    max_ahead = 0

    passes = 0

    def on_pass(metrics: Any, state: Any) -> None:
        nonlocal max_ahead, passes
        time.sleep(0.002)
        passes += 1
        max_ahead = max(max_ahead, *(count - passes for count in counts.values()))

    built.run(start_of(algo), 20, on_pass)
    assert counts == {"a": 20, "b": 20}
    assert max_ahead <= MAX_ITERATIONS_AHEAD + 2


def test_the_callback_gets_the_metrics_of_each_iteration_in_order() -> None:
    def loop(s):
        x = on("b", lambda x: x + 1)(on("a", lambda x: x)(s["x"]))
        return {"x": x}, {"x": Mean.of(x)}

    algo, values = toy({"x": jnp.zeros(())}, loop), []
    engine(algo, replicated(a=1, b=1)).run(
        start_of(algo), 30, lambda metrics, state: values.append(float(metrics["x"].total[0]))
    )
    assert values == [float(i) for i in range(1, 31)]


def test_donated_buffers_are_never_read_again() -> None:
    def loop(s):
        x, old = on("a", lambda x, y: (jnp.mod(x + y, 31), y))(s["x"], s["y"])
        return {"x": jnp.mod(on("b")(x), 31), "y": x, "z": old, "older": s["z"]}

    algo = toy(dict.fromkeys(("x", "y", "z", "older"), jnp.arange(4.0)), loop)
    for layout in (layout_of(one="*"), layout_of(one="a", two="b")):
        assert_unchanged(algo, layout, iterations=40)


@pytest.mark.parametrize(
    "roles",
    [
        (Role("a", ("a",), devices=2), Role("b", ("b",))),
        (Role("a", ("a",)), Role("b", ("b",), devices=4)),
        (Role("a", ("a",), devices=2), Role("b", ("b",), devices=4)),
        (Role("a", ("a",), devices=4), Role("b", ("b",), replicas=2)),
        (Role("a", ("a",), replicas=4), Role("b", ("b",), devices=2)),
        (Role("a", ("a",), replicas=4, on=("1", "cpu:2")), Role("b", ("b",), devices=2, on=("0", "3"))),
        (Role("a", ("a",), on=("1",)), Role("b", ("b",), on=("2",))),
        (Role("a", ("a",), on=("cpu",)), Role("b", ("b",), replicas=2, on=("3",))),
    ],
    ids=lambda roles: " | ".join(map(str, roles)),
)
def test_roles_over_devices_compute_the_same_as_replicas(roles: tuple[Role, Role]) -> None:
    total = on("b", lambda x, y: (x * 2 + y, all_mean(jnp.sum(x) * 0 + 3)))

    def loop(s: Any) -> Any:
        x, y = total(on("a", lambda x, y: x + y)(s["x"], s["y"]), s["y"])
        return {"x": jnp.mod(x, 31), "y": y}

    assert_unchanged(toy(lambda env: {"x": jnp.arange(1.0 * env.num_envs), "y": jnp.float32(1)}, loop), Layout(*roles))


@pytest.mark.parametrize("name", ["4", "cpu:9", "cpu:x", "abacus", "abacus:0"])
def test_a_missing_device_is_an_error(name: str) -> None:
    with pytest.raises(WeftError, match=f"there is no device '{name}': use one of cpu:0, cpu:1"):
        engine(pair(), Layout(Role("a", ("a",), on=(name,)), Role("b", ("b",))))


def test_barriers_do_not_change_exact_results() -> None:
    built = engine(pair(), replicated(a=1, b=1), barriers=True)
    assert_same(built.run(start_of(pair()), 3), plain(pair())[0])


@pytest.mark.parametrize(
    ("count", "partner_count", "expected"),
    [
        (1, 1, [[0]]),
        (2, 2, [[0], [1]]),
        (1, 4, [[0, 1, 2, 3]]),
        (2, 4, [[0, 1], [2, 3]]),
        (4, 2, [[0], [0], [1], [1]]),
        (4, 1, [[0], [0], [0], [0]]),
    ],
)
def test_replicas_have_neighbouring_partners(count: int, partner_count: int, expected: list[list[int]]) -> None:
    assert [list(partners(index, count, partner_count)) for index in range(count)] == expected


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_merges_preserve_dtypes_and_order(dtype: Any) -> None:
    values = [[jnp.asarray([1, 2], dtype), jnp.asarray(i, dtype)] for i in range(4)]
    for name, expected in (("sum", ([4, 8], 6)), ("mean", ([1, 2], 1.5))):
        rows, number = compiled_merge((name, name))(values)
        assert (rows.dtype, number.dtype) == (dtype, dtype)
        np.testing.assert_array_equal(np.asarray(rows, np.float32), expected[0])
        assert float(number) == expected[1]


@pytest.mark.parametrize("fragment", [lambda x: x + all_mean(x.sum()), lambda x: x + replica()[0]])
def test_replicas_share_executables(fragment: Any) -> None:
    shared = engine(pair(a=fragment), Layout(Role("a", ("*",), replicas=2)))
    assert shared.executables["a", 0] is shared.executables["a", 1]
