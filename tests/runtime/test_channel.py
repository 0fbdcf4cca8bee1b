"""Streams deliver every item once and stay bounded, and all-reduce combines the values of each round."""

import threading
import time
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from weft.runtime.channel import AllReduce, RunControl, Stopped, Stopwatch, Stream, Stuck


def run_threads(*functions: Callable[[], Any]) -> list[Any]:
    """Runs each function on a thread. Returns their results or exceptions."""
    results: list[Any] = [None] * len(functions)

    def run(position: int, function: Callable[[], Any]) -> None:
        try:
            results[position] = function()
        except Exception as error:
            results[position] = error

    threads = [threading.Thread(target=run, args=pair, daemon=True) for pair in enumerate(functions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(5)
        assert not thread.is_alive()
    return results


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 2
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


@settings(max_examples=30)
@given(st.integers(1, 4), st.lists(st.sampled_from((0.0, 0.0, 1e-4)), min_size=1, max_size=30), st.booleans())
def test_a_stream_delivers_every_item_once_in_order_and_stays_bounded(
    capacity: int, pauses: list[float], slow_reader: bool
) -> None:
    stream = Stream(RunControl(5.0), "one", "two", "x", capacity)
    max_depth = 0

    def write() -> None:
        nonlocal max_depth
        for number, pause in enumerate(pauses):
            time.sleep(0.0 if slow_reader else pause)
            stream.put(number)
            max_depth = max(max_depth, len(stream.items))

    def read() -> list[int]:
        items = []
        for pause in pauses:
            time.sleep(pause if slow_reader else 0.0)
            items.append(stream.get())
        return items

    assert run_threads(write, read)[1] == list(range(len(pauses)))
    assert max_depth <= capacity


def test_a_full_stream_blocks_its_sender() -> None:
    control = RunControl(5.0)
    stream = Stream(control, "one", "two", "x", capacity=2)
    sent: list[int] = []
    thread = threading.Thread(target=lambda: [(stream.put(i), sent.append(i)) for i in range(3)], daemon=True)
    thread.start()
    wait_for(lambda: "one" in control.waits)
    assert (sent, list(stream.items)) == ([0, 1], [0, 1])
    assert stream.get() == 0
    thread.join(2)
    assert (sent, list(stream.items)) == ([0, 1, 2], [1, 2])
    assert not control.waits


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (lambda stream: stream.get(), "two has waited 0.05 s for x from one"),
        (lambda stream: [stream.put(i) for i in range(3)], "one has waited 0.05 s for space to send x to two"),
    ],
    ids=["get", "put"],
)
def test_a_wait_that_is_too_long_reports_the_event_and_all_other_waits(action: Any, message: str) -> None:
    control = RunControl(0.05)
    control.waits["three"] = "y from four"
    with pytest.raises(Stuck) as error:
        action(Stream(control, "one", "two", "x"))
    assert str(error.value) == f"{message} (meanwhile three waits for y from four)"


def test_stopping_ends_all_current_and_later_waits() -> None:
    control = RunControl(5.0)
    stream, all_reduce = Stream(control, "one", "two", "x"), AllReduce(control, "m", ("three", "four"), sum)

    def stop() -> None:
        wait_for(lambda: len(control.waits) == 2)
        control.stop()

    received, reduced, _ = run_threads(stream.get, lambda: all_reduce.contribute(0, 1), stop)
    assert isinstance(received, Stopped) and isinstance(reduced, Stopped)
    with pytest.raises(Stopped):
        stream.put(1)


def test_a_stream_counts_messages_bytes_and_depth() -> None:
    stream = Stream(RunControl(5.0), "one", "two", "x")
    for number in range(3):
        stream.put([np.full(2, number, np.float32)])
        if number:
            stream.get()
    assert (stream.sent, stream.max_depth, stream.message_bytes, len(stream.items)) == (3, 2, 8, 1)


def test_a_stopwatch_adds_up_intervals_and_includes_the_current_one() -> None:
    stopwatch = Stopwatch("one")
    assert stopwatch.read(time.perf_counter()) == 0.0
    stopwatch.start()
    started = stopwatch.state[1]
    stopwatch.start()
    assert started is not None and stopwatch.state == (0.0, started)
    assert stopwatch.read(started + 3.0) == 3.0
    stopwatch.stop()
    seconds = stopwatch.state[0]
    stopwatch.stop()
    assert seconds > 0.0 and stopwatch.read(started + 9.0) == seconds


def test_waiting_counts_on_the_stopwatch_of_the_waiting_side() -> None:
    stream = Stream(RunControl(5.0), "one", "two", "x")

    def send() -> None:
        time.sleep(0.02)
        stream.put(1)

    run_threads(stream.get, send)
    now = time.perf_counter()
    assert stream.receive_wait.read(now) >= 0.01 and stream.send_wait.read(now) == 0.0


@pytest.mark.parametrize("count", [1, 2, 5])
def test_all_reduce_combines_the_values_of_each_round(count: int) -> None:
    rounds = 60
    names = tuple(f"a[{index}]" for index in range(count))
    all_reduce = AllReduce(RunControl(5.0), "m", names, lambda values: [v[0] for v in values])

    def replica(index: int) -> list[Any]:
        results = []
        for number in range(rounds):
            if (number + index) % 7 == 0:
                time.sleep(1e-4)
            results.append(all_reduce.contribute(index, [(index, number)]))
        return results

    for results in run_threads(*[lambda i=i: replica(i) for i in range(count)]):
        assert results == [[(index, number) for index in range(count)] for number in range(rounds)]


def test_all_reduce_reports_missing_replicas() -> None:
    with pytest.raises(Stuck, match=r"a\[0\] has waited 0.05 s for the other replicas at a:all_mean"):
        AllReduce(RunControl(0.05), "a:all_mean", ("a[0]", "a[1]"), sum).contribute(0, 1)
