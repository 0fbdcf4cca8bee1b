"""The displays show the progress of a run, on a terminal and elsewhere."""

import io
from dataclasses import replace

import numpy as np
import pytest

from weft.report.progress import LiveProgress, PlainProgress, progress
from weft.report.system import Lag, RoleTime, System
from weft.report.update import Update


class Terminal(io.StringIO):
    def isatty(self):
        return True


def make_update(iteration, iterations=100):
    metrics = {"episode_return": (np.array([500.0]), np.array([2.0]))}
    return Update(iteration, iterations, 1000 * iteration, 0.1 * iteration, metrics)


@pytest.mark.parametrize(("stream", "kind"), [(io.StringIO(), PlainProgress), (Terminal(), LiveProgress)])
def test_a_terminal_gets_the_live_display(stream, kind):
    assert isinstance(progress("ppo", stream=stream), kind)


def test_the_plain_display_prints_the_first_and_the_last_update():
    stream = io.StringIO()
    with progress("ppo", stream=stream) as display:
        for iteration in range(1, 101):
            display(make_update(iteration))
    lines = stream.getvalue().splitlines()
    assert lines == [
        "ppo  1,000 steps  10 k steps/s  return 250.0  2 episodes  0:00:10 left",
        "ppo  100,000 steps  10 k steps/s  return 250.0  200 episodes  0:00:00 left",
    ]
    assert "\x1b" not in stream.getvalue()


SYSTEM = System(1.0, (RoleTime("actor", 0.4, 0.6, 0.0), RoleTime("learner", 0.93, 0.05, 0.02)), (), Lag({1: 4, 2: 1}))


@pytest.mark.parametrize(
    ("system", "text"),
    [
        (SYSTEM, "lag 1.2 (max 2)  bottleneck learner 93 %  "),
        (replace(SYSTEM, lag=None), "bottleneck learner 93 %  "),
        (replace(SYSTEM, lag=None, roles=SYSTEM.roles[:1]), ""),
    ],
    ids=["lanes", "synchronous", "one role"],
)
def test_the_line_names_the_bottleneck(system, text):
    stream = io.StringIO()
    with PlainProgress("ppo", stream, every=0.0) as display:
        display(replace(make_update(1), system=system))
        display(make_update(2))
    first, second = stream.getvalue().splitlines()
    assert first == f"ppo  1,000 steps  10 k steps/s  return 250.0  2 episodes  {text}0:00:10 left"
    assert f"4 episodes  {text}0:00" in second, "the last reading stays until the next"


@pytest.mark.parametrize("columns", ["80", "160"])
def test_the_last_line_covers_the_whole_run(monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    with progress("ppo", stream=stream) as display:
        display(replace(make_update(100), system=replace(SYSTEM, roles=SYSTEM.roles[::-1], lag=None), total=SYSTEM))
    assert "lag 1.2 (max 2) bottleneck learner 93 % 0:00:00 left" in " ".join(stream.getvalue().split())


def test_the_live_line_shows_the_last_update(monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    with progress("ppo", stream=stream) as display:
        for iteration in (1, 50, 100):
            display(make_update(iteration))
    assert "100,000 steps  10 k steps/s  return 250.0  6 episodes  0:00:00 left" in stream.getvalue()


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()])
def test_an_error_before_the_first_update_propagates_and_leaves_no_line(stream, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    with pytest.raises(ValueError, match="boom"), progress("ppo", stream=stream):
        raise ValueError("boom")
    assert "ppo" not in stream.getvalue().rpartition("\x1b[2K")[2]
