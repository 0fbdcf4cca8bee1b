"""The logs hold every iteration once, for any number of iterations per update."""

import json
import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tensorboardX.proto.event_pb2 import Event

from weft.report.logs import EventLog, MetricLog, rows
from weft.report.system import EdgeTraffic, Lag, RoleTime, System
from weft.report.update import Update


def make_updates(sizes, per_iteration=32):
    """Yields updates with the given numbers of iterations. Iteration n has mean loss n, and an episode if n is even."""
    done, total = 0, sum(sizes)
    for size in sizes:
        numbers = np.arange(done + 1, done + size + 1, dtype=np.float32)
        done += size
        metrics = {"loss": (2 * numbers, np.full(size, 2.0)), "episode_return": (numbers, 1 - numbers % 2)}
        yield Update(done, total, done * per_iteration, 0.1 * done, metrics)


@given(st.lists(st.integers(1, 7), min_size=1, max_size=6))
def test_every_iteration_has_one_row(sizes):
    all_rows = [row for update in make_updates(sizes) for row in rows(update)]
    assert [row.iteration for row in all_rows] == list(range(1, sum(sizes) + 1))
    assert all(row.steps == 32 * row.iteration for row in all_rows)
    assert all(row.means["loss"] == row.iteration for row in all_rows)
    assert all((row.means["episode_return"] is None) == (row.iteration % 2 == 1) for row in all_rows)


def test_metric_log_is_strict_json_even_if_a_mean_is_missing_or_not_finite(tmp_path):
    log = MetricLog(tmp_path / "metrics.jsonl")
    log(Update(2, 2, 20, 0.1, {"loss": (np.array([math.nan, math.inf]), np.ones(2)), "x": (np.zeros(2), np.zeros(2))}))
    log.close()

    def reject(constant):
        raise AssertionError(constant)

    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line, parse_constant=reject) for line in lines] == [
        {"iteration": 1, "steps": 10, "loss": "nan", "x": None},
        {"iteration": 2, "steps": 20, "loss": "inf", "x": None},
    ]


def test_event_log_holds_the_same_means(tmp_path):
    log = EventLog(tmp_path)
    for update in make_updates([3, 2]):
        log(update)
    log.close()
    (path,) = tmp_path.iterdir()
    values = [(event.step, value.tag, value.simple_value) for event in read(path) for value in event.summary.value]
    assert [(step, value) for step, tag, value in values if tag == "loss"] == [(32 * n, n) for n in range(1, 6)]
    assert [step for step, tag, _ in values if tag == "episode_return"] == [64, 128]


def test_event_log_holds_the_system_readings(tmp_path):
    edge = EdgeTraffic("a", "b", "stream", 2.0, 64.0, depth=1, depth_max=2)
    system = System(1.0, (RoleTime("a", 0.5, 0.5, 0.0), RoleTime("b", 1.0, 0.0, 0.0)), (edge,), Lag({0: 2, 3: 1}))
    log = EventLog(tmp_path)
    log(Update(1, 2, 32, 0.1, {}, system=system, total=system))
    log(Update(2, 2, 64, 0.2, {}))
    log.close()
    (path,) = tmp_path.iterdir()
    values = [(event.step, value) for event in read(path) for value in event.summary.value]
    assert {step for step, _ in values} == {32}
    scalars = {value.tag: value.simple_value for _, value in values if value.HasField("simple_value")}
    assert scalars["system/role/a/waiting"] == 0.5 and scalars["system/lag/mean"] == 1.0
    assert scalars["system/edge/a-to-b/stream/bytes_per_s"] == 64.0
    assert scalars["system/edge/a-to-b/stream/depth"] == 1.0
    (histogram,) = [value.histo for _, value in values if value.HasField("histo")]
    assert (histogram.num, histogram.max, histogram.sum) == (3, 3, 3)


def read(path):
    """Yields the events of a file. A record is: length (8 bytes), checksum (4), event, checksum (4)."""
    data, offset = path.read_bytes(), 0
    while offset < len(data):
        length = int.from_bytes(data[offset : offset + 8], "little")
        yield Event.FromString(data[offset + 12 : offset + 12 + length])
        offset += 16 + length
