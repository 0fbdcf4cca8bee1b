"""Streams lose nothing and hold little; meetings merge the right values, round after round."""

import threading
import time
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from weft.runtime.channel import AllReduce, RunControl, Stopped, Stopwatch, Stream, Stuck


def together(*tasks: Callable[[], Any]) -> list[Any]:
    """Run tasks as threads; what each returned or raised."""
    results: list[Any] = [None] * len(tasks)

    def work(number: int, task: Callable[[], Any]) -> None:
        try:
            results[number] = task()
        except Exception as error:
            results[number] = error

    threads = [threading.Thread(target=work, args=pair, daemon=True) for pair in enumerate(tasks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(5)
        assert not thread.is_alive()
    return results


def eventually(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 2
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


@settings(max_examples=30)
@given(st.integers(1, 4), st.lists(st.sampled_from((0.0, 0.0, 1e-4)), min_size=1, max_size=30), st.booleans())
def test_a_stream_gives_everything_once_in_order_and_stays_bounded(
    capacity: int, pauses: list[float], slow_reader: bool
) -> None:
    stream = Stream(RunControl(5.0), "one", "two", "x", capacity)
    most = 0

    def write() -> None:
        nonlocal most
        for number, pause in enumerate(pauses):
            time.sleep(0.0 if slow_reader else pause)
            stream.put(number)
            most = max(most, len(stream.items))

    def read() -> list[int]:
        got = []
        for pause in pauses:
            time.sleep(pause if slow_reader else 0.0)
            got.append(stream.get())
        return got

    assert together(write, read)[1] == list(range(len(pauses)))
    assert most <= capacity


def test_a_full_stream_makes_its_sender_wait() -> None:
    wait = RunControl(5.0)
    stream = Stream(wait, "one", "two", "x", capacity=2)
    done: list[int] = []
    thread = threading.Thread(target=lambda: [(stream.put(i), done.append(i)) for i in range(3)], daemon=True)
    thread.start()
    eventually(lambda: "one" in wait.doing)
    assert (done, list(stream.items)) == ([0, 1], [0, 1])
    assert stream.get() == 0
    thread.join(2)
    assert (done, list(stream.items)) == ([0, 1, 2], [1, 2])
    assert not wait.doing


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda stream: stream.get(), "two has waited 0.05 s for x from one"),
        (lambda stream: [stream.put(i) for i in range(3)], "one has waited 0.05 s for two to take x"),
    ],
    ids=["get", "put"],
)
def test_waiting_too_long_says_who_waits_for_what_from_whom(act: Any, message: str) -> None:
    wait = RunControl(0.05)
    wait.doing["three"] = "y from four"
    with pytest.raises(Stuck) as error:
        act(Stream(wait, "one", "two", "x"))
    assert str(error.value) == f"{message} (meanwhile three waits for y from four)"


def test_stopping_wakes_whoever_waits_and_stops_whoever_comes_later() -> None:
    wait = RunControl(5.0)
    stream, meeting = Stream(wait, "one", "two", "x"), AllReduce(wait, "m", ("three", "four"), sum)

    def stop() -> None:
        eventually(lambda: len(wait.doing) == 2)
        wait.stop()

    got, met, _ = together(stream.get, lambda: meeting.join(0, 1), stop)
    assert isinstance(got, Stopped) and isinstance(met, Stopped)
    with pytest.raises(Stopped):
        stream.put(1)


def test_a_stream_counts_what_went_through_it() -> None:
    stream = Stream(RunControl(5.0), "one", "two", "x")
    for number in range(3):
        stream.put([np.full(2, number, np.float32)])
        if number:
            stream.get()
    assert (stream.sent, stream.most, stream.bytes, len(stream.items)) == (3, 2, 8, 1)


def test_a_clock_counts_the_stays_that_are_over_and_the_one_that_goes_on() -> None:
    clock = Stopwatch("one")
    assert clock.read(time.perf_counter()) == 0.0
    clock.start()
    began = clock.spent[1]
    clock.start()
    assert began is not None and clock.spent == (0.0, began)
    assert clock.read(began + 3.0) == 3.0
    clock.stop()
    over = clock.spent[0]
    clock.stop()
    assert over > 0.0 and clock.read(began + 9.0) == over


def test_waiting_is_kept_on_the_clock_of_whoever_waits() -> None:
    stream = Stream(RunControl(5.0), "one", "two", "x")

    def send() -> None:
        time.sleep(0.02)
        stream.put(1)

    together(stream.get, send)
    now = time.perf_counter()
    assert stream.starved.read(now) >= 0.01 and stream.blocked.read(now) == 0.0


@pytest.mark.parametrize("count", [1, 2, 5])
def test_meetings_merge_what_was_brought_in_each_round(count: int) -> None:
    rounds = 60
    names = tuple(f"a[{index}]" for index in range(count))
    meeting = AllReduce(RunControl(5.0), "m", names, lambda values: [v[0] for v in values])

    def replica(index: int) -> list[Any]:
        got = []
        for number in range(rounds):
            if (number + index) % 7 == 0:
                time.sleep(1e-4)
            got.append(meeting.join(index, [(index, number)]))
        return got

    for got in together(*[lambda i=i: replica(i) for i in range(count)]):
        assert got == [[(index, number) for index in range(count)] for number in range(rounds)]


def test_a_meeting_that_nobody_else_comes_to_says_so() -> None:
    with pytest.raises(Stuck, match=r"a\[0\] has waited 0.05 s for the other replicas at a:all_mean"):
        AllReduce(RunControl(0.05), "a:all_mean", ("a[0]", "a[1]"), sum).join(0, 1)
